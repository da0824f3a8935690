"""The interface that sessions of all protocols have of the broker: publish, subscribe, settle, declare.

A protocol's machine (AMQP 0-9-1, MQTT, STOMP) turns bytes into calls of a `Session` and its answers into
bytes. It needs nothing else of the broker:

    login = broker.enter(client, user, vhost)          the user has been authenticated and may enter: see `Broker`
    session = Session(login, client, peer, number)     one for each conversation that has deliveries of its own

    session.topology.declare_queue(QueueWanted("q", durable=True), then)      find_, delete_, purge_queue;
    session.topology.bind(BindingWanted("amq.topic", "queue", "q", "a.#"), then)   declare_, delete_exchange; unbind
    session.publish("amq.topic", "a.b", content, then)       `then(True)` when it is safe, `then(False)` if refused
    session.consume(ConsumerWanted("q", prefetch=10), receiver, then)    deliveries come to `Receiver.receive`
    session.fetch("q", False, then)                          one message
    session.acknowledge(session.take(tag, multiple))         or `reject`, or `take_back`, which queues them again
    session.cancel(tag, then)
    session.close()                                          what was out with the client goes back to its queues
    broker.leave(client)                                     its exclusive queues go

**Answers.** What has an answer takes `then`, and calls it once: at once, before the call returns, or later, when the
cluster has agreed or another node has answered. It gets the answer, or a `Refusal` with RabbitMQ's code and text, which
each protocol tells its client in its own way; after `close` it is `CLOSED`. What has no answer raises `Refused`.
Calls that are answered later may overtake each other: a machine that must keep their order waits for the answer.

**Flow.** A queue delivers as much as `Receiver.room` allows; a machine whose client takes more again calls
`session.on_room`. A client that publishes faster than a queue takes is named with `Client.on_crowded`; its machine
should read no further for a while.

**The hot paths of AMQP, MQTT and STOMP reach deeper.** Their publishes go to queues in bundles of one kind, by the raw
bytes of a key (`find_route`, then `Queue.enqueue`); their consumers write deliveries as bytes, a bundle at a time
(`subscribe` with a consumer of its own). One call of this interface for each message would cost AMQP a third of its
speed. All else goes through here.

May be imported from outside: `session`, `wanted`, `message`, `checks.Refused`. Imports the broker and what is below it;
nothing of any protocol's session.
"""
