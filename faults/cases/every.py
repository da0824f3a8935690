"""The list of all cases."""

from __future__ import annotations

from faults.cases import disks, features, folders, links, locks, members, networks, processes, resources
from faults.cases.case import Case

CASES: dict[str, Case] = {
    case.name: case
    for module in (processes, networks, disks, folders, resources, members, locks, features, links)
    for case in module.CASES
}
