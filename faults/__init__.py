"""Faults that real clusters are put through, and what their clients saw of it.

    python -m faults --list                              the cases
    python -m faults --case power-all --seed 7           one of them; --broker rabbitmq for RabbitMQ under the same
    python -m faults --all                               all of them, in about an hour
    python -m faults check FOLDER                        checks histories again, without any broker
    python -m faults ledgers FOLDER OUT                  writes them as `leveret pipeline audit` reads them

- `machines`: nodes as processes with their own network (`switch`) and their own disk (`forgetful`), and what can be
  done to them: cut, slow down, kill, freeze, cut the power.
- `clients`: publishers, consumers, holders of locks and others. Each writes a history: every operation with its start,
  its end and its outcome, as lines of JSON.
- `history`: the form of histories, and checkers, which read nothing else and import nothing of the broker.
- `cases`: which faults, at which moments, under which load. The seed decides all that the runner chooses; how the
  machine and the nodes take it is up to them, so a seed is a strong hint and no exact replay. Where it has to be exact,
  use `simulation`.

Root's rights are needed for namespaces and mounts. A case that cannot run on a machine says why and is skipped.
"""
