"""Table values as RabbitMQ prints them in its texts: strings as they are, all others as Erlang terms."""

from __future__ import annotations

from typing import Final

from leveret.protocol.tables import Field, type_name


def described(field: Field | None) -> str:
    """Return `the value '5' of type 'signedint'`, or `none`."""
    return "none" if field is None else f"the value '{printed_value(field)}' of type '{type_name(field)}'"


def printed_value(field: Field) -> str:
    """Return a value as RabbitMQ prints it: strings as they are, all others as Erlang terms.

    Erlang also breaks long lines; no client could parse that, so it is not imitated.
    """
    if field.kind == "S":
        return str(field.value)
    if field.kind == "x":
        return bytes(field.value).decode("utf-8", "surrogateescape")
    return _term(field)


def printed_field(field: Field) -> str:
    """Return a value with its type, as the pair that it is in Erlang."""
    return f"{{{type_name(field)},{_term(field)}}}"


def _term(field: Field) -> str:
    kind, value = field
    if kind == "S":
        return _binary(value)
    if kind == "x":
        return _binary(value.decode("utf-8", "surrogateescape"))
    if kind == "t":
        return "true" if value else "false"
    if kind == "V":
        return "undefined"
    if kind == "D":
        return f"{{{value[0]},{value[1]}}}"
    if kind in ("f", "d"):
        return printed_float(value)
    if kind == "A":
        return f"[{','.join(map(printed_field, value))}]"
    if kind == "F":
        entries = [f"{{{_binary(name)},{type_name(each)},{_term(each)}}}" for name, each in value.items()]
        return f"[{','.join(entries)}]"
    return str(value)


_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def _binary(text: str) -> str:
    return f'<<"{text.translate(_ESCAPES)}">>' if text else "<<>>"


def printed_float(value: float) -> str:
    """Return a float as Erlang prints it: the fewest exact digits, with an exponent where that is shorter."""
    if value == 0:
        return "-0.0" if str(value).startswith("-") else "0.0"
    sign = "-" if value < 0 else ""
    mantissa, exponent = f"{abs(value)!r}e0".split("e")[:2]
    whole, _, fraction = mantissa.partition(".")
    place = len(whole) + int(exponent)  # The position of the point in the digits.
    stripped = (whole + fraction).lstrip("0")
    place -= len(whole + fraction) - len(stripped)
    digits = stripped.rstrip("0")
    if 0 < place < len(digits):
        return f"{sign}{digits[:place]}.{digits[place:]}"
    if place == 0:
        return f"{sign}0.{digits}"
    power = str(place - 1)
    cost = len(power) + 1 + (2 if len(digits) == 1 else 1)
    if place < 0 and 2 - place <= cost:
        return f"{sign}0.{'0' * -place}{digits}"
    if place > 0 and place - len(digits) + 2 <= cost:
        return f"{sign}{digits}{'0' * (place - len(digits))}.0"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}e{power}"
