"""Runs the real nodes in one process, in virtual time, with a hostile network and disks that forget.

Everything that happens follows from a seed: `python -m simulation --seed N`. The packages import only those that stand
above them in this list; what is here, above all of them, is a run of a whole cluster: its plan, its world, and the
search for the fewest steps that fail.

    core         virtual time, the network, the disk, the machine that a node runs on
    amqp         AMQP 0-9-1 as a client speaks it
    features     what a run may have beside plain queues
    checkers     what must hold, by what clients see and nodes agree on
    clients      clients that do what the plan says
    scenarios    faults and orders of operators, each for a kind of run
    raft, ring   worlds of their own, of Raft alone and of one mirrored queue alone; they import only `core`
"""
