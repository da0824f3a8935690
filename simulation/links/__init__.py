"""Runs in which shovels or federation links move messages beside everything else, within a cluster or between two.

- `linked`: what these runs have in common: publishers, what is known to be safe, and who runs what.
- `shovelled`, `federated`: within one cluster, through all that a run does to it.
- `two_clusters`: two clusters with a line between them, whose faults `scenarios.line_faults` draws.
- `shovels_between`, `federation_between`: what moves messages from one to the other.
- `played`: runs a plan in the world that it is for.

It imports the world; `simulation.__main__` and tests import it.
"""
