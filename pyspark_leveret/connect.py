"""Connects to the nodes, and turns errors into texts for users.

An error inside a data source reaches the user as the last line of a Python traceback within a Java one. So that line
has to say everything: what was tried, what the broker answered, and what to do. `LeveretError` has such a text, and no
cause.

Executors' workers live longer than a task, so each process keeps its clients with their connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from leveret.client.address import Address
from leveret.client.amqp import BrokerError
from leveret.data.client import NOT_FOUND, DataClient, DataError, Refused, Unreachable
from leveret.data.sheet import BadSheet
from pyspark_leveret.options import Access

PLANNING_PATIENCE_S: Final = 10.0  # A user with a mistyped server waits in front of a screen.
FIRST_PATIENCE_S: Final = 2.0  # While not even a connection can be made: the address is wrong, or nothing runs there.
READING_PATIENCE_S: Final = 60.0  # Long enough for a running task to outlast the failover of a node.
CLIENTS_MAX: Final = 16

_clients: dict[tuple[Access, float], DataClient] = {}


class LeveretError(Exception):
    """An error whose text is one line for the user."""


class Lost(Exception):
    """An AMQP connection has failed; a new one may work."""


def client(access: Access, patience_s: float = READING_PATIENCE_S) -> DataClient:
    """Returns the client of this process, for one thread at a time."""
    kept = _clients.get((access, patience_s))
    if kept is None:
        while len(_clients) >= CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        kept = _clients[access, patience_s] = new_client(access, patience_s)
    return kept


def new_client(access: Access, patience_s: float) -> DataClient:
    is_planning = patience_s <= PLANNING_PATIENCE_S
    return DataClient(
        access.servers, access.vhost, access.user, access.password, tls=access.tls(), patience_s=patience_s,
        first_patience_s=FIRST_PATIENCE_S if is_planning else None,
    )  # fmt: skip


@contextmanager
def explained(access: Access, what: str) -> Iterator[None]:
    """Turns errors of the client into LeveretErrors. `what` completes "cannot …"."""
    try:
        yield
    except Refused as error:
        raise LeveretError(_refusal(access, what, error)) from None
    except Unreachable as error:
        if error.was_answered:
            raise LeveretError(f"cannot {what}: {error}") from None
        servers = ", ".join(access.servers)
        raise LeveretError(
            f"cannot {what}: no node answers at {servers} (option 'servers' names management ports): {error}"
        ) from None
    except (DataError, BadSheet) as error:
        raise LeveretError(f"cannot {what}: {error}") from None


def _refusal(access: Access, what: str, error: Refused) -> str:
    said = error.reason or error.error
    if error.error == "not_authorized":
        return f"cannot {what}: user '{access.user}' is unknown, or the password is wrong ({said})"
    if error.status in (401, 403):
        return f"cannot {what}: user '{access.user}' lacks the permission in vhost '{access.vhost}' ({said})"
    if error.status == NOT_FOUND:
        return f"cannot {what}: not found in vhost '{access.vhost}' ({said})"
    return f"cannot {what}: {said} ({error.status})"


def login_error(error: BrokerError, access: Access, address: Address) -> Exception:
    """Returns the error for a failed AMQP login: Lost if another attempt makes sense."""
    text = str(error)
    if " 403 " in text:
        return LeveretError(f"{address} refuses user '{access.user}': wrong user or password? ({text})")
    if "speaks HTTP" in text:
        return LeveretError(f"cannot log in: {text} (what is meant is a port for AMQP, by default 5672)")
    if "user and password" in text:  # The error of a port that closes the connection.
        return LeveretError(f"cannot log in: {text} (what is meant is a port for AMQP, by default 5672)")
    if " 530 " in text:
        return LeveretError(f"{address} refuses user '{access.user}' in vhost '{access.vhost}' ({text})")
    return Lost(text)
