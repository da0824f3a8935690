"""The name in a client's certificate, by which it logs in with the mechanism EXTERNAL.

`ssl_cert_login_from` says which name that is: the distinguished name, written as RabbitMQ writes it, or the common one.
Only a certificate that the TLS library has checked has a name here: `ssl.SSLObject` gives none of others.
"""

from __future__ import annotations

import re
from asyncio import BaseTransport
from typing import Any, Final, Literal

LoginFrom = Literal["distinguished_name", "common_name"]
Names = tuple[tuple[tuple[str, str], ...], ...]  # As `ssl` gives them: what is named together, the broadest first.

_SHORT: Final = {
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL: Final = re.compile(r'[,+"\\<>;]|^[ #]| $')
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def login_name(transport: BaseTransport, login_from: LoginFrom) -> str | None:
    """None: the client has no certificate, none that counts, or none with such a name."""
    tls = transport.get_extra_info("ssl_object")
    certificate: dict[str, Any] | None = None if tls is None else tls.getpeercert()
    subject: Names = (certificate or {}).get("subject", ())
    if login_from == "common_name":
        return ",".join(value for group in subject for name, value in group if name == "commonName") or None
    return distinguished_name(subject) or None


def distinguished_name(subject: Names) -> str:
    """`CN=ann,OU=sales,O=shop`: the narrowest first."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in group) for group in reversed(subject)
    )


def _escaped(value: str) -> str:
    value = _SPECIAL.sub(lambda match: "\\" + match[0], value)
    return _CONTROL.sub(lambda match: f"\\{ord(match[0]):02X}", value)
