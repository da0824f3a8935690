"""A client that behaves well: publishes, gets, and asks over HTTP, one thing after the other, until its stdin closes.

A process of its own, so that it notices an answer when it comes, however busy the attackers are. Prints, as JSON, how
often it was answered and the most that the node worked during one wait.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import select
import sys

import pika

PATIENCE_S = 120.0


def worked_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        except FileNotFoundError:
            continue  # It has ended meanwhile.
    return total / 1e9


def main() -> None:
    pid, port, management_port = map(int, sys.argv[1:4])
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, heartbeat=0, socket_timeout=PATIENCE_S, stack_timeout=PATIENCE_S,
        credentials=pika.PlainCredentials("good", "good"), blocked_connection_timeout=PATIENCE_S,
    )  # fmt: skip
    channel = pika.BlockingConnection(parameters).channel()
    channel.confirm_delivery()
    channel.queue_declare("good", durable=True)
    asking = http.client.HTTPConnection("127.0.0.1", management_port, timeout=PATIENCE_S)
    login = {"authorization": "Basic " + base64.b64encode(b"good:good").decode()}

    def publish() -> None:
        channel.basic_publish("", "good", b"x" * 100, pika.BasicProperties(delivery_mode=2))

    def get() -> None:
        assert channel.basic_get("good", auto_ack=True)[0] is not None

    def ask() -> None:
        asking.request("GET", "/api/whoami", headers=login)
        response = asking.getresponse()
        response.read()
        assert response.status == 200, response.status

    waits = {"publish": 0.0, "get": 0.0, "ask": 0.0}
    count = 0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0] or count < 3:
        for do in (publish, get, ask):
            before = worked_s(pid)
            do()
            waits[do.__name__] = max(waits[do.__name__], worked_s(pid) - before)
            count += 1
    print(json.dumps({"count": count, **waits}), flush=True)


if __name__ == "__main__":
    main()
