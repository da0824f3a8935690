"""The same requests for RabbitMQ and for Leveret, and what of their answers can be compared.

`actions.txt` says what is asked. RabbitMQ's answers are in `recorded/actions.json`; to record them anew, with nothing
in that broker but what it comes with:

    python tests/system/management/actions.py <management port> <node name> <AMQP port>
"""

from __future__ import annotations

import base64
import html
import http.client
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
RECORDED: Final = HERE / "recorded" / "actions.json"
PASSWORDS: Final = {"guest": "guest", "nobody": "x"}
USERS: Final = ("plain", "mgmt", "mon", "pol", "weak")
FORM: Final = "application/x-www-form-urlencoded"


class Case(NamedTuple):
    user: str | None
    method: str
    path: str
    body: str | None

    def __str__(self) -> str:
        return " ".join(word for word in (self.user or "-", self.method, self.path, self.body) if word is not None)


def cases() -> Iterator[Case]:
    text, _, rights = (HERE / "actions.txt").read_text().partition("rights:\n")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield _case(line)
    for user in USERS:
        if user == "weak":  # It may do nothing even with a queue that is there.
            yield _case("guest PUT /api/queues/v1/r1 {}")
        for line in rights.splitlines():
            yield _case(user + line[1:])


def _case(line: str) -> Case:
    user, method, path, *body = line.split(" ", 3)
    return Case(None if user == "-" else user, method, path, body[0] if body else None)


class Asker:
    """Asks one broker."""

    def __init__(self, port: int, node: str, amqp: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.node = node
        self.amqp = amqp

    def ask(self, case: Case) -> dict[str, Any]:
        headers = {"content-type": FORM if case.path == "/api/login" else "application/json"}
        if case.user is not None:
            credentials = f"{case.user}:{PASSWORDS.get(case.user, 'p')}"
            headers["authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
        path = case.path.replace("NODE", self.node).replace("AMQP", str(self.amqp))
        body = None if case.body is None else case.body.replace("NODE", self.node).encode()
        self.connection.request(case.method, path, body, headers)
        response = self.connection.getresponse()
        data = response.read()
        answer = {"status": response.status, "location": response.headers["location"], "json": self._shown(data)}
        if answer["location"] is not None:  # The hash of arguments is another.
            answer["location"] = re.sub(r"~.+", "~hash", answer["location"])
        return answer

    def _shown(self, data: bytes) -> Any:
        """Without what is by chance, and without the quoting of `<`, which RabbitMQ does in some of its texts."""
        text = html.unescape(data.decode().replace(self.node, "NODE").replace("&quot;", '\\"'))
        text = re.sub(r'"password_hash":"[^"]+"', '"password_hash":"some"', text)
        return without_figures(json.loads(text)) if text else None


def without_figures(value: Any) -> Any:
    """What a vhost has seen of messages is counted, and told of, a while later."""
    if isinstance(value, list):
        return [without_figures(one) for one in value]
    if not isinstance(value, dict) or "cluster_state" not in value:
        return value
    return {name: one for name, one in value.items() if not name.startswith(("message", "recv_", "send_"))}


def main() -> None:
    port, node, amqp = sys.argv[1:]
    asker = Asker(int(port), node, int(amqp))
    recorded = [{"case": str(case), **asker.ask(case)} for case in cases()]
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in recorded)
    RECORDED.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
