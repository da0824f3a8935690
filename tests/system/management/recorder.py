"""Asks RabbitMQ the questions of `scene`, and keeps the answers for the tests.

    rabbitmq-plugins enable rabbitmq_management rabbitmq_prometheus
    python -m tests.system.management.recorder --amqp 5672 --management 15672 --prometheus 15692

Values change from run to run, so the tests compare names and types. What names the machine is left out.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.system.management.scene import METRICS, QUESTIONS, Scene

RECORDED = Path(__file__).parent / "recorded"
PLAY_S = 14.0  # Three samples of RabbitMQ's.
SECRET = ("db_dir", "log_files", "config_files", "applications", "os_pid")


def ask(port: int, path: str, user: str = "guest:guest") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Authorization": "Basic " + base64.b64encode(user.encode()).decode()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def paths(port: int) -> dict[str, str]:
    """The questions, with what is in braces filled in."""
    found = {}
    for word, path in (("node", "/api/overview"), ("connection", "/api/connections"), ("channel", "/api/channels")):
        answer = json.loads(ask(port, path)[2])
        value = answer["node"] if word == "node" else answer[0]["name"]
        found["{" + word + "}"] = quote(value, safe="@")
    return {name: _filled(path, found) for name, path in QUESTIONS.items()}


def _filled(path: str, values: dict[str, str]) -> str:
    for word, value in values.items():
        path = path.replace(word, value)
    return path


def shape(value: Any) -> Any:
    """Names and types: lists by their first element, numbers as one type."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"


def metric_names(text: str) -> dict[str, str]:
    """The names of metrics and their types."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("amqp", "management", "prometheus"):
        parser.add_argument(f"--{name}", type=int, required=True)
    ports = parser.parse_args()
    RECORDED.mkdir(exist_ok=True)
    with Scene(ports.amqp) as scene:
        until = time.monotonic() + PLAY_S
        while time.monotonic() < until:
            scene.play(5)
            scene.connection.process_data_events(0.2)
        for name, path in paths(ports.management).items():
            status, _, body = ask(ports.management, path)
            _keep(name, {"path": QUESTIONS[name], "status": status, "body": json.loads(body) if body else None})
        for name, path in METRICS.items():
            _, headers, body = ask(ports.prometheus, path)
            _keep(name, {"path": path, "type": headers["content-type"], "metrics": metric_names(body.decode())})


def _keep(name: str, record: dict[str, Any]) -> None:
    body = record.get("body")
    for row in body if isinstance(body, list) else [body]:
        if isinstance(row, dict):
            for secret in SECRET:
                row.pop(secret, None)
    (RECORDED / f"{name}.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
