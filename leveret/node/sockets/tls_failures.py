"""Logs TLS handshakes that fail.

The event loop drops a connection whose handshake fails without telling anybody: the protocol behind the port never
learns that there was one. A client with an expired certificate sees no more than the end of its connection, so that the
node's log is the only place where the reason can be found.
"""

from __future__ import annotations

import logging
import ssl
from typing import Final

logger = logging.getLogger("leveret.connection")

MORE_IS_NEEDED: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Told(ssl.SSLObject):
    port_for = ""  # The purpose of the port; set in a class for each context.

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except MORE_IS_NEEDED:
            raise
        except ssl.SSLError as error:
            logger.warning("TLS server: handshake at the port for %s failed: %s", self.port_for, reason(error))
            raise


def tell_failures(context: ssl.SSLContext, port_for: str) -> None:
    """Has failed handshakes of a server with this context logged."""
    context.sslobject_class = type("Told", (_Told,), {"port_for": port_for})


def reason(error: ssl.SSLError) -> str:
    """Returns the reason of an error, without the place in OpenSSL's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    text = (error.reason or str(error)).lower().replace("_", " ")
    _, is_of_client, said = text.partition(" alert ")
    return f"the client says: {said}" if is_of_client else text
