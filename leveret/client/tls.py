"""TLS of a client: makes contexts, and explains errors."""

from __future__ import annotations

import ssl


def default_context(
    cacert: str | None = None, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, /
) -> ssl.SSLContext:
    """Python's default context, with the same rules in each version.

    From Python 3.13 on the default refuses an authority without `keyUsage`, which `openssl req -x509` makes. RabbitMQ
    and its clients accept it, and a node must find its cluster after an upgrade of Python.
    """
    made = ssl.create_default_context(purpose, cafile=cacert)
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return made


def context(
    cacert: str | None = None, cert: str | None = None, key: str | None = None, insecure: bool = False
) -> ssl.SSLContext:
    """Trusts the system's certificates unless `cacert` names others. Raises OSError for a file that cannot be used."""
    made = default_context(cacert)
    if insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if cert is not None:
        made.load_cert_chain(cert, key)
    return made


def problem(error: OSError) -> str:
    """Returns why a connection could not be made, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}. Use --cacert to name a CA to trust, or --insecure to accept any certificate"
    reason: str | None = getattr(error, "reason", None)  # Only errors of TLS have one.
    if reason == "WRONG_VERSION_NUMBER":
        return "the server does not use TLS there"
    if reason:
        return f"TLS: {reason.replace('_', ' ').lower()}"
    return error.strerror or str(error)
