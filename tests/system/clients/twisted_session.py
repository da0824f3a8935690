"""Publishes a message and gets it with txAMQP: twisted_session.py SPECIFICATION PORT QUEUE."""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import inlineCallbacks
from twisted.internet.protocol import ClientCreator
from twisted.internet.task import react
from txamqp.client import TwistedDelegate
from txamqp.content import Content
from txamqp.protocol import AMQClient
from txamqp.spec import load


@inlineCallbacks
def session(_: Any, specification: str, port: str, queue: str) -> Any:
    connect: Any = ClientCreator
    creator = connect(reactor, AMQClient, delegate=TwistedDelegate(), vhost="/", spec=load(specification))
    client = yield creator.connectTCP("127.0.0.1", int(port))
    yield client.authenticate("guest", "guest")
    channel = yield client.channel(1)
    yield channel.channel_open()
    yield channel.queue_declare(queue=queue, exclusive=True)
    yield channel.basic_consume(queue=queue, consumer_tag="c", no_ack=True)
    messages = yield client.queue("c")
    channel.basic_publish(routing_key=queue, content=Content(b"hello"))
    message = yield messages.get(timeout=30)
    print(f"got {message.content.body!r}")
    yield client.close()


react(session, sys.argv[1:])
