"""Runs the real nodes in one process, in virtual time, with a hostile network and disks that forget.

Everything that happens follows from a seed: `python -m simulation --seed N`. The packages import only those above them
in this list; the modules here import all of them: they are a run of a whole cluster, with its plan, its world, and the
search for the fewest steps that fail.

    core         virtual time, the network, the disk, the machine that a node runs on
    amqp         AMQP 0-9-1 as a client speaks it
    features     what a run may have besides plain queues
    checkers     what must be true, by what clients see and nodes agree on
    clients      clients that carry out the plan
    scenarios    faults and commands of operators, each for a kind of run
    raft, ring   separate worlds, of Raft alone and of one mirrored queue alone; they import only `core`
"""
