from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.metadata.rules.passwords import (
    MD5,
    SHA256,
    SHA512,
    UnknownHashing,
    hash_password,
    known_hashing,
    verify_password,
)


def test_the_example_of_rabbitmqs_documentation() -> None:
    assert hash_password("test12", bytes.fromhex("908DC60A")) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_a_user_of_old() -> None:
    """As RabbitMQ 3.10.8 let in whom it had imported with this hash."""
    assert verify_password("cleo secret", "qrvM3cz5pjHG2Vpv0/DvVlP6VpA=", MD5)


@pytest.mark.parametrize("hashing", [SHA256, SHA512, MD5])
@given(password=st.text(min_size=1), other=st.text(), salt=st.binary(min_size=4, max_size=4))
def test_only_the_password_matches(hashing: str, password: str, other: str, salt: bytes) -> None:
    stored = hash_password(password, salt, hashing)
    assert verify_password(password, stored, hashing)
    assert verify_password(other, stored, hashing) == (other == password)


@pytest.mark.parametrize(
    "stored", ["", "*", "é", "AAAA", "AAAAAA==", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2PO"]
)
def test_what_is_no_hash_matches_nothing(stored: str) -> None:
    assert not verify_password("test12", stored)
    assert not verify_password("", stored)


def test_an_empty_password_never_matches() -> None:
    assert not verify_password("", hash_password("", b"salt"))


def test_unknown_hashing_and_odd_salts_are_errors_without_secrets() -> None:
    assert known_hashing(SHA256) and not known_hashing("rot13")
    with pytest.raises(UnknownHashing) as unknown:
        verify_password("secret", "AAAAAAAA", "rot13")
    with pytest.raises(ValueError, match="salt of 3 bytes") as odd:
        hash_password("secret", b"abc")
    assert "secret" not in str(unknown.value) + str(odd.value)
