"""What policy keys, arguments and headers mean, in one line each."""

from __future__ import annotations

from typing import Final, NamedTuple


class Text(NamedTuple):
    values: str
    meaning: str


_NUMBER: Final = "a number"
_MS: Final = "milliseconds"

POLICY_KEYS: Final = {
    "alternate-exchange": Text("an exchange", "Gets messages that the exchange routes nowhere."),
    "consumer-timeout": Text(_MS, "Time that a consumer may keep a message unacknowledged."),
    "consumer-timeout-action": Text("`close`, `requeue`", "What happens then: the channel is closed, or the delivery "
                                    "is requeued."),
    "dead-letter-exchange": Text("an exchange", "Gets messages that are rejected, expire or are dropped."),
    "dead-letter-routing-key": Text("a routing key", "Routing key of dead letters, instead of the original one."),
    "dead-letter-strategy": Text("`at-most-once`, `at-least-once`", "Whether a dead letter is kept until its target "
                                 "has confirmed it."),
    "delivery-limit": Text(_NUMBER, "How often a message may be requeued before it is dead-lettered or dropped."),
    "expires": Text(_MS, "An unused queue is deleted after this time."),
    "federation-upstream": Text("an upstream", "Messages come from this upstream: see [federation](../federation.md)."),
    "federation-upstream-pattern": Text("a regular expression", "They come from all upstreams with such a name."),
    "federation-upstream-set": Text("a set, or `all`", "They come from the upstreams of a set, or from all."),
    "ha-forbid-copying": Text("`true`, `false`", "No mirror is added or synchronised unless an operator asks for it."),
    "ha-mode": Text("`all`, `exactly`, `nodes`", "Which nodes have a copy of the queue."),
    "ha-params": Text("a number, or a list of nodes", "How many copies (`exactly`), or where (`nodes`)."),
    "ha-promote-on-failure": Text("`when-synced`, `always`", "Whether a mirror that lacks messages is promoted when a "
                                  "node dies."),
    "ha-promote-on-shutdown": Text("`when-synced`, `always`", "The same when a node is stopped."),
    "ha-replication": Text("`sync`, `async`", "Whether a confirm waits for the mirrors in sync."),
    "ha-replication-window": Text("an object", "How far a mirror with `async` may be behind, and when mirrors may be "
                                  "synchronised."),
    "ha-spread": Text("a label of nodes", "Copies are on nodes with different values of this label."),
    "ha-sync-batch-size": Text(_NUMBER, "Messages in one batch when a mirror is synchronised."),
    "ha-sync-blocking": Text("`true`, `false`", "Whether the queue is blocked while a mirror is synchronised."),
    "ha-sync-mode": Text("`manual`, `automatic`", "Whether a new mirror is synchronised with what the queue holds."),
    "ha-sync-strategy": Text("`incremental`, `full`, `event`", "What a returning mirror fetches: what it lacks, "
                             "everything, nothing."),
    "initial-cluster-size": Text(_NUMBER, "Nodes that have a copy of the stream."),
    "journal": Text('`"off"`, `"full"`, `"0.01"`', "What the [event journal](../journal.md) records of the queue."),
    "max-age": Text('`"7D"`', "Messages of a stream that are older are removed. Units: Y, M, D, h, m, s."),
    "max-in-memory-bytes": Text("bytes", "Contents of ready messages that may be in memory."),
    "max-in-memory-length": Text(_NUMBER, "Ready messages whose contents may be in memory."),
    "max-length": Text(_NUMBER, "Ready messages of the queue."),
    "max-length-bytes": Text("bytes", "Bodies of ready messages; size of a stream."),
    "message-ttl": Text(_MS, "A ready message expires after this time."),
    "overflow": Text("`drop-head`, `reject-publish`, `reject-publish-dlx`", "What a full queue does: drops its oldest "
                     "message, refuses the publish, or refuses it and dead-letters it."),
    "queue-leader-locator": Text("`client-local`, `balanced`", "Where the master of a new quorum queue or stream is "
                                 "placed. Older names: `random`, `least-leaders`."),
    "queue-master-label": Text('`"zone=a"`', "The master is placed on a node with this label."),
    "queue-master-locator": Text("`client-local`, `min-masters`, `random`", "Where the master of a new queue is "
                                 "placed."),
    "queue-master-pinned": Text("`true`, `false`", "Rebalancing leaves the queue where it is."),
    "queue-mode": Text("`default`, `lazy`", "With `lazy`, contents of messages leave memory when they are on disk."),
    "queue-version": Text("`1`, `2`", "With 2, the contents of 2,048 ready messages stay in memory, the rest is on "
                          "disk only."),
    "stream-max-segment-size-bytes": Text("bytes", "Size of a segment, the unit in which a stream drops messages."),
}  # fmt: skip

# Arguments of queues that no policy key of the same name explains.
QUEUE_ARGUMENTS: Final = {
    "ha-mirror-queues": Text("`true`, `false`", "Mirrored as the configured default says, or not at all."),
    "ha-mirror- queues": Text("`true`, `false`", "The same; a spelling that some clients use."),
    "x-max-priority": Text("1 to 255", "The queue delivers messages of higher priority first."),
    "x-queue-type": Text("`classic`, `quorum`, `stream`", "The type of the queue."),
    "x-quorum-initial-group-size": Text(_NUMBER, "Nodes that have a copy of the quorum queue."),
    "x-single-active-consumer": Text("`true`, `false`", "One consumer at a time gets messages; the next one takes over "
                                     "when it is gone."),
}  # fmt: skip
CONSUMER_ARGUMENTS: Final = {
    "x-cancel-on-ha-failover": Text("`true`, `false`", "The consumer is cancelled when its queue gets another master."),
    "x-consumer-timeout": Text(_MS, "Time that this consumer may keep a message unacknowledged."),
    "x-leveret-bundles": Text("`true`", "Messages with origins come many in a frame: see "
                              "[origins](../shovel.md#origins)."),
    "x-leveret-origin": Text("`true`", "Deliveries carry the queue and number that a message had first: see "
                             "[origins](../shovel.md#origins)."),
    "x-priority": Text("an integer", "Consumers with a higher priority get messages first."),
    "x-stream-offset": Text("`first`, `last`, `next`, a number, a time, `1h`", "Where a consumer of a stream begins."),
}  # fmt: skip
EXCHANGE_ARGUMENTS: Final = {
    "alternate-exchange": Text("an exchange", "Gets messages that the exchange routes nowhere."),
    "hash-header": Text("a header", "`x-consistent-hash` takes the hash of this header."),
    "hash-property": Text("`message_id`, `correlation_id`, `timestamp`", "`x-consistent-hash` takes the hash of this "
                          "property."),
    "x-delayed-type": Text("a type of exchange", "How an `x-delayed-message` exchange routes a message that is due."),
    "x-downstream-name": Text("a cluster", "For which broker an `x-federation-upstream` exchange is."),
    "x-downstream-vhost": Text("a vhost", "For which vhost there."),
    "x-max-hops": Text(_NUMBER, "Over how many links a message may have come when it has passed this exchange."),
    "x-single-target": Text("`true`, `false`", "A message goes to one of the matching destinations, drawn at random."),
}  # fmt: skip
BINDING_ARGUMENTS: Final = {
    "x-bound-from": Text("set by federation", "For which brokers the binding was made, and how far it is passed on."),
    "x-match": Text("`all`, `any`, `all-with-x`, `any-with-x`", "How many headers must match a binding of a headers "
                    "exchange."),
}  # fmt: skip
HEADERS: Final = {
    "CC": Text("set by publishers", "A list of further routing keys."),
    "BCC": Text("set by publishers", "The same; the header is removed."),
    "x-correlation-id": Text("set by the broker", "Correlation data of an MQTT message that is no short string."),
    "x-death": Text("set by the broker", "How often and why a message was dead-lettered, by queue."),
    "x-delay": Text("set by publishers", "Milliseconds that an `x-delayed-message` exchange holds the message."),
    "x-delivery-count": Text("set by the broker", "How often the message was requeued, if the queue counts it."),
    "x-first-death-exchange": Text("set by the broker", "The exchange it was published to before its first death."),
    "x-first-death-queue": Text("set by the broker", "The queue in which it died first."),
    "x-first-death-reason": Text("set by the broker", "Why: `rejected`, `expired`, `maxlen`, `delivery_limit`."),
    "x-leveret-origin": Text("set by the broker", "The queue that a moved message comes from, and its number there."),
    "x-mqtt-…": Text("set by the broker", "What only an MQTT message has: see [MQTT](../mqtt.md#messages)."),
    "x-original-cc": Text("set by federation", "The header `CC` of a message that has come to a federated queue."),
    "x-original-exchange": Text("set by federation", "The exchange to which such a message was published."),
    "x-original-routing-key": Text("set by federation", "Its routing key."),
    "x-received-from": Text("set by federation", "The brokers that a message has come from, the newest first."),
    "x-reply-to-topic": Text("set by the broker", "The response topic of an MQTT message, as a routing key."),
    "x-shovelled": Text("set by the broker", "A [shovel](../shovel.md) with `add-forward-headers` moved the message."),
    "x-shovelled-timestamp": Text("set by the broker", "When it did, with `add-timestamp-header`."),
    "x-stream-offset": Text("set by the broker", "The offset of a message that comes from a stream."),
}  # fmt: skip

# Strings of the code that begin with `x-` and are none of these: types of exchanges, HTTP headers, and inner names.
OTHER_NAMES: Final = frozenset(
    {
        "x-", "x-consistent-hash", "x-content-type-options", "x-credit", "x-delayed-exchange", "x-delayed-message",
        "x-federation-upstream", "x-forwarded-host", "x-frame-options", "x-ha-policy", "x-internal-purpose", "x-next",
        "x-queue-name", "x-random", "x-reason", "x-stream-filter", "x-stream-match-unfiltered",
    }
)  # fmt: skip
