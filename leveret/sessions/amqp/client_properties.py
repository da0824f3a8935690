"""What clients say of themselves when they log in.

All connections of one program say the same, except for their names: a node with thousands of them keeps it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from leveret.protocol.tables import BadTable, Field, Table, decode_table, encode_table, field_to_python, to_python

NAME: Final = "connection_name"
SHARED_MAX: Final = 256  # So many tables are kept for others,
SHARED_BYTES_MAX: Final = 1_024  # if they are no larger than this.


class ClientProperties:
    """The properties of one client."""

    __slots__ = ("_name", "_others")

    def __init__(self, table: Table) -> None:
        name = table.get(NAME)
        self._name = None if name is None else field_to_python(name)
        self._others = _plain(table if name is None else {**table, NAME: Field("V", None)})  # The name has its place.

    def as_dict(self) -> Mapping[str, object]:
        """Return plain values, in the client's order."""
        return self._others if NAME not in self._others else {**self._others, NAME: self._name}

    @property
    def capabilities(self) -> Mapping[str, object]:
        found = self._others.get("capabilities")
        return found if isinstance(found, dict) else {}


def _plain(table: Table) -> dict[str, Any]:
    """Return plain values, the same object for equal tables."""
    try:
        encoded = encode_table(table)
    except BadTable:  # Not all that can be read can be written: a float may be no number.
        return to_python(table)
    return _decoded(encoded) if len(encoded) <= SHARED_BYTES_MAX else to_python(table)


@lru_cache(maxsize=SHARED_MAX)
def _decoded(encoded: bytes) -> dict[str, Any]:
    return to_python(decode_table(encoded)[0])
