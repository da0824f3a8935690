"""Mutating examples and running targets on them. The same seed gives the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

INPUT_BYTES_MAX: Final = 4096

# Bytes and lengths at which parsers tend to be off by one.
BYTES: Final = (0, 1, 2, 8, 60, 0x7F, 0x80, 0xC3, 0xCE, 0xFE, 0xFF, *b"SItTFAVxdDlLbBsui")
LENGTHS: Final = tuple(n.to_bytes(4, "big") for n in (0, 1, 3, 4, 5, 255, 256, 65536, 2**31 - 1, 2**31, 2**32 - 1))


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    run: Callable[[bytes], None]
    corpus: Sequence[bytes]
    allowed: tuple[type[Exception], ...]
    cost: int = 1  # Short runs give it so many times fewer inputs.


@dataclass(frozen=True, slots=True)
class Finding:
    target: str
    data: bytes
    error: Exception

    def __str__(self) -> str:
        replay = f"python -m tests.system.fuzz --target {self.target} --hex {self.data.hex()}"
        return f"{self.target}: {type(self.error).__name__}: {self.error}\n    {replay}"


@dataclass(slots=True)
class Result:
    """How many inputs were accepted and refused; a target that only ever does one of them tests nothing."""

    accepted: int = 0
    refused: int = 0


def fuzz(target: Target, inputs: int, seed: int) -> Result:
    """Runs the target on so many inputs. Raises `FuzzFailed` on the first finding."""
    result = Result()
    for data in mutations(target.corpus, inputs, Random(f"{seed} {target.name}")):
        if try_one(target, data):
            result.accepted += 1
        else:
            result.refused += 1
    return result


class FuzzFailed(AssertionError):
    """An input the target failed on."""


def try_one(target: Target, data: bytes) -> bool:
    """Whether the target accepted the input."""
    try:
        target.run(data)
    except target.allowed:
        return False
    except Exception as error:
        raise FuzzFailed(str(Finding(target.name, data, error))) from error
    return True


def mutations(corpus: Sequence[bytes], count: int, random: Random) -> Iterator[bytes]:
    """The examples themselves first, then mutations of them."""
    yield from corpus[:count]
    for _ in range(count - len(corpus)):
        data = bytearray(random.choice(corpus))
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            _MUTATORS[int(random.random() * len(_MUTATORS))](data, corpus, random)
        yield bytes(data[:INPUT_BYTES_MAX])


def _at(data: bytearray, random: Random) -> int:
    return int(random.random() * len(data))


def _flip_bit(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    if data:
        data[_at(data, random)] ^= 1 << int(random.random() * 8)


def _set_byte(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    if data:
        data[_at(data, random)] = BYTES[int(random.random() * len(BYTES))]


def _count(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    """One more or one less: lengths that are nearly right."""
    if data:
        at = _at(data, random)
        data[at] = (data[at] + (1 if random.random() < 0.5 else -1)) & 0xFF


def _set_length(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    at = _at(data, random)
    data[at : at + 4] = LENGTHS[int(random.random() * len(LENGTHS))]


def _truncate(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    del data[_at(data, random) :]


def _delete(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    at = _at(data, random)
    del data[at : at + 1 + int(random.random() * 8)]


def _insert(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    at = _at(data, random)
    data[at:at] = random.randbytes(1 + int(random.random() * 8))


def _repeat(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    at = _at(data, random)
    data[at:at] = data[at : at + 1 + int(random.random() * 16)]


def _splice(data: bytearray, corpus: Sequence[bytes], random: Random) -> None:
    other = random.choice(corpus)
    data[_at(data, random) :] = other[int(random.random() * len(other)) :]


_MUTATORS: Final = (_flip_bit, _set_byte, _count, _set_length, _truncate, _delete, _insert, _repeat, _splice)
