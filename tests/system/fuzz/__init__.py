"""A fuzzer for everything that reads bytes from strangers.

A *target* reads bytes and may raise only what it names; anything else, and any broken promise that the target asserts
itself (what was decoded, encoded and decoded again, is the same), is a finding. Inputs are valid examples, mutated.

    python -m tests.system.fuzz --inputs 1000000 --seed 7              all targets, the inputs shared out among them
    python -m tests.system.fuzz --target tables --hex 0000000161       one input again; a finding prints this line

A new target is a `Target` added to `TARGETS` in `targets.py`.
"""
