"""Cases: which faults happen to a cluster, under which load.

- `case`: what a case is, and the list of all.
- `run`: runs a case: load, faults, mending, draining; it leaves a folder with histories.
- `processes`, `networks`, `disks`, `folders`, `resources`, `members`, `locks`, `features`, `links`: the cases.
- `every`: the list of all.
"""
