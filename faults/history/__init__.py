"""Histories of clients, and checkers that know nothing else.

- `entries`: the form of a history, its writer and its reader.
- `messages`, `locks`, `leases`, `registers`, `recovery`: one checker each.
- `verdict`: all checkers for a folder.
- `ledgers`: the same histories in the form that `leveret pipeline audit` reads.

Nothing here imports the broker or the rest of `faults`.
"""
