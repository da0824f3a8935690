"""Conversations as text, with the answers of RabbitMQ's plugin, in `conversations.txt`.

    = title                 a conversation, each with a connection of its own
    > SEND                  what the client says, line by line; `^@` is a NUL, `\\xff` a byte, `\\r` a carriage return
    > destination:/queue/q
    >
    > hello^@               a step ends with an empty line
    < RECEIPT               what RabbitMQ 3.10.8 answered; `(end)` if it closed the connection
    # reason                why Leveret answers otherwise, and
    | RECEIPT               what it answers then

What differs from run to run is made the same: SESSION is the session's id, NAME what the server made up. Frames of one
step are compared without their order, since it is chance which of a message and a receipt comes first.

    python -m tests.unit.sessions.stomp.recorded PORT      ask a RabbitMQ with its STOMP plugin again
"""

from __future__ import annotations

import re
import secrets
import socket
import sys
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path(__file__).with_name("conversations.txt")
SILENCE_S: Final = 0.4
END: Final = "(end)"
_MADE_UP: Final = re.compile(r"(amq\.gen|stomp-subscription)-[\w-]{22}")
_SESSION: Final = re.compile(r"\nsession:(\S+)\n")


class Step(NamedTuple):
    said: str
    answered: list[str]  # By RabbitMQ, line by line.
    reason: str
    ours: list[str]  # If it is another answer.


class Conversation(NamedTuple):
    title: str
    steps: list[Step]


def read(text: str) -> list[Conversation]:
    found: list[Conversation] = []
    last = ""
    for line in text.splitlines():
        mark, rest = line[:1], line[2:]
        if mark == "=":
            found.append(Conversation(rest, []))
        elif mark == ">":
            steps = found[-1].steps
            if last == ">":
                steps[-1] = steps[-1]._replace(said=f"{steps[-1].said}\n{rest}")
            else:
                steps.append(Step(rest, [], "", []))
        elif mark == "<":
            found[-1].steps[-1].answered.append(rest)
        elif mark == "|":
            found[-1].steps[-1].ours.append(rest)
        elif mark == "#":
            found[-1].steps[-1] = found[-1].steps[-1]._replace(reason=rest)
        last = mark
    return found


def written(conversations: list[Conversation]) -> str:
    lines: list[str] = []
    for title, steps in conversations:
        lines.append(f"= {title}")
        for said, answered, reason, ours in steps:
            lines += [f"> {line}".rstrip() for line in said.split("\n")]
            lines += [f"< {line}".rstrip() for line in answered]
            lines += [f"# {reason}"] if reason else []
            lines += [f"| {line}".rstrip() for line in ours]
            lines.append("")
    return "\n".join(lines)


def to_bytes(said: str, session: str) -> bytes:
    text = said.replace("^@", "\0").replace("\\r", "\r").replace("SESSION", session)
    data = text.encode()
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), data)


def to_lines(answer: bytes, session: str, is_over: bool) -> list[str]:
    """An answer as it is written down, frame by frame."""
    text = answer.decode("latin-1")
    if session:
        text = text.replace(session, "SESSION")
    text = _MADE_UP.sub("NAME", text).replace("\0\n", "^@\n").replace("\0", "^@")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [*lines, END] if is_over else lines


def frames_of(lines: list[str]) -> list[str]:
    return sorted(frame.strip("\n") for frame in "\n".join(lines).split("^@"))


def session_in(answer: bytes) -> str | None:
    found = _SESSION.search(answer.decode("latin-1"))
    return None if found is None else found[1]


def _ask(sock: socket.socket, data: bytes) -> tuple[bytes, bool]:
    sock.settimeout(SILENCE_S)
    answer = b""
    try:
        sock.sendall(data)
        while piece := sock.recv(65536):
            answer += piece
    except TimeoutError:
        return answer, False
    except OSError:
        pass  # The server has closed the connection.
    return answer, True


def record(port: int) -> None:
    """Queues whose names begin with `rec-` are called otherwise meanwhile, so that nothing is in them."""
    recorded = []
    ours, theirs = b"rec-", f"{secrets.token_hex(2)[:3]}-".encode()
    for title, steps in read(FILE.read_text()):
        sock, session, is_over, answers = socket.create_connection(("127.0.0.1", port)), "", False, []
        for step in steps:
            said = to_bytes(step.said, session).replace(ours, theirs)
            answer, is_over = (b"", True) if is_over else _ask(sock, said)
            answer = answer.replace(theirs, ours)
            session = session_in(answer) or session
            answers.append(step._replace(answered=to_lines(answer, session, is_over)))
        sock.close()
        recorded.append(Conversation(title, answers))
    FILE.write_text(written(recorded))


if __name__ == "__main__":
    record(int(sys.argv[1]))
