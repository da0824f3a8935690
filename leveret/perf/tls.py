"""TLS, as a client speaks it: whom it trusts, how it shows who it is, and what went wrong."""

from __future__ import annotations

import ssl


def context(
    cacert: str | None = None, cert: str | None = None, key: str | None = None, insecure: bool = False
) -> ssl.SSLContext:
    """Without `cacert`, whom the system trusts. Raises OSError for a file that does not hold what it should."""
    made = ssl.create_default_context(cafile=cacert)
    if insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if cert is not None:
        made.load_cert_chain(cert, key)
    return made


def problem(error: OSError) -> str:
    """What to tell people who could not connect."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message}. --cacert says whom to trust; --insecure trusts anybody"
    reason: str | None = getattr(error, "reason", None)  # Of those that come from TLS.
    if reason == "WRONG_VERSION_NUMBER":
        return "no TLS is spoken there"
    if reason:
        return f"TLS: {reason.replace('_', ' ').lower()}"
    return error.strerror or str(error)
