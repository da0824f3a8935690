"""Attacks on a running node, beside a client that behaves well.

    python -m tests.system.attacks                 all of them, at length (part of `make fuzz`)
    python -m tests.system.attacks --attack login  one of them

What is measured is what the well-behaved client has to wait, in processor time of the node: a busy machine makes
everything slower, but does not make the node work more. See `running` for what must hold after each attack, and
`attacks` for the attacks; whoever finds a new one adds it there.
"""
