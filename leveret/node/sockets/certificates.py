"""The name in a client's certificate, by which it logs in with the mechanism EXTERNAL; and the end of validity of ours.

`ssl_cert_login_from` says which name that is: the distinguished name, written as RabbitMQ writes it, or the common one.
Only a certificate that the TLS library has checked has a name here: `ssl.SSLObject` gives none of others.
"""

from __future__ import annotations

import datetime
import re
import ssl
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
    """Returns the user name in a client's certificate; None without a valid certificate, or one with that name."""
    tls = transport.get_extra_info("ssl_object")
    certificate: dict[str, Any] | None = None if tls is None else tls.getpeercert()
    subject: Names = (certificate or {}).get("subject", ())
    if login_from == "common_name":
        return ",".join(value for group in subject for name, value in group if name == "commonName") or None
    return distinguished_name(subject) or None


def distinguished_name(subject: Names) -> str:
    """Returns a distinguished name as text, the narrowest part first: `CN=ann,OU=sales,O=shop`."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in group) for group in reversed(subject)
    )


def _escaped(value: str) -> str:
    value = _SPECIAL.sub(lambda match: "\\" + match[0], value)
    return _CONTROL.sub(lambda match: f"\\{ord(match[0]):02X}", value)


# -- Until when ----------------------------------------------------------------------------------------------------

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0


def end_of_validity(pem: str) -> datetime.datetime:
    """Returns the earliest end of validity of the certificates in a file. Raises ValueError."""
    found = [_not_after(ssl.PEM_cert_to_DER_cert(one)) for one in _PEM.findall(pem)]
    if not found:
        raise ValueError("there is no certificate in it")
    return min(found)


def _not_after(der: bytes) -> datetime.datetime:
    """Returns the end of validity of a certificate. The library tells it for a peer's certificate only, so it is read
    from the X.509 structure: the certificate is a sequence, whose first element is another one: (version), serial,
    algorithm, issuer, validity; and validity has two times."""
    try:
        _, at, _ = _element(der, 0)
        _, at, _ = _element(der, at)
        kind, _, end = _element(der, at)
        for _ in range(4 if kind == _VERSION else 3):
            at = end
            _, inside, end = _element(der, at)
        _, _, second = _element(der, inside)
        kind, start, end = _element(der, second)
    except IndexError:
        raise ValueError("the certificate is cut off") from None
    text = der[start:end].decode("ascii")
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Returns the kind of an element, where its content begins, and where it ends."""
    length, start = der[at + 1], at + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[at + 2 : start], "big")
    return der[at], start, start + length
