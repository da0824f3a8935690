"""Names in certificates, written as RabbitMQ writes them."""

from __future__ import annotations

import pytest

from leveret.node.sockets.certificates import Names, distinguished_name


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((), ""),
        (((("countryName", "DE"),), (("organizationName", "shop"),), (("commonName", "ann"),)), "CN=ann,O=shop,C=DE"),
        (((("organizationName", "s"), ("organizationalUnitName", "it")), (("commonName", "b"),)), "CN=b,O=s+OU=it"),
        (((("1.2.3.4", "x"),),), "1.2.3.4=x"),
        (((("commonName", "a,b+c"),),), "CN=a\\,b\\+c"),
        (((("commonName", "#1 "),),), "CN=\\#1\\ "),
        (((("commonName", "a\nb"),),), "CN=a\\0Ab"),
    ],
)
def test_distinguished_name(subject: Names, name: str) -> None:
    assert distinguished_name(subject) == name
