"""Commands and tables for hypothesis: few names, so that commands meet each other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from leveret.metadata.model import commands as c
from leveret.metadata.mqtt import commands as m
from leveret.metadata.mqtt import records
from leveret.protocol.tables import Field, Table

integers = st.one_of(
    st.builds(Field, st.just("I"), st.integers(-(1 << 31), (1 << 31) - 1)),
    st.builds(Field, st.just("l"), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(Field, st.just("B"), st.integers(0, 255)),
    st.builds(Field, st.just("T"), st.integers(0, (1 << 64) - 1)),
)
# Any bytes may come as a string; surrogateescape turns the odd ones into lone surrogates.
texts = st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape"))
leaves = st.one_of(
    integers,
    st.builds(Field, st.just("S"), texts),
    st.builds(Field, st.just("x"), st.binary(max_size=8)),
    st.builds(Field, st.just("t"), st.booleans()),
    st.builds(Field, st.just("d"), st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(Field, st.just("D"), st.tuples(st.integers(0, 255), st.integers(0, (1 << 32) - 1))),
    st.just(Field("V", None)),
)
fields = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Field, st.just("A"), st.lists(inner, max_size=3)),
        st.builds(Field, st.just("F"), st.dictionaries(texts, inner, max_size=3)),
    ),
    max_leaves=4,
)
tables: st.SearchStrategy[Table] = st.one_of(
    st.just({}),
    st.sampled_from([{"a": Field("I", 1)}, {"a": Field("l", 1)}]),
    st.dictionaries(texts, fields, max_size=3),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=4,
)

vhosts = st.sampled_from(["/", "/", "/", "other", "missing"])
users = st.sampled_from(["guest", "ann", "missing"])
queues = st.sampled_from(["q1", "q2", "q3"])
exchanges = st.sampled_from(["x1", "x2", "x3", "amq.topic"])
any_exchange = st.sampled_from(["x1", "x2", "x3", "amq.topic", "", "missing"])
keys = st.sampled_from(["", "k", "#"])
patterns = st.sampled_from(["", ".*", "^q"])
nodes = st.sampled_from(["a", "b"])
names = st.sampled_from(["n1", "n2"])
limits = st.dictionaries(st.sampled_from(["max-queues", "max-connections"]), st.integers(-1, 3), max_size=2)
tags = st.lists(st.sampled_from(["administrator", "monitoring"]), max_size=2).map(tuple)

declare_queue = st.builds(
    c.DeclareQueue,
    vhosts,
    queues,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    tables,
    st.sampled_from([None, "a/1"]),
    nodes,
)
declare_exchange = st.builds(
    c.DeclareExchange, vhosts, exchanges, st.just("topic"), st.booleans(), st.booleans(), st.booleans(), tables
)
queue_ends = st.tuples(vhosts, any_exchange, st.just("queue"), queues, keys, tables)
exchange_ends = st.tuples(vhosts, any_exchange, st.just("exchange"), any_exchange, keys, tables)
ends = st.one_of(queue_ends, exchange_ends)
bind = ends.map(lambda values: c.Bind(*values))

topics = st.sampled_from(["a", "a/b", "$x", ""])
client_ids = st.sampled_from(["c1", "c2", "ü"])
epochs = st.integers(1, 6)
times = st.integers(0, 5_000)
seconds = st.sampled_from([0, 1, 3, records.NEVER_S])
contents = st.binary(max_size=8)
retained = st.builds(records.RetainedMessage, topics, contents, st.integers(0, 2), contents, times)
wills = st.none() | st.builds(
    records.Will, st.just("amq.topic"), names, contents, st.integers(0, 2), st.none() | retained, st.integers(0, 2)
)
subscriptions = st.dictionaries(
    topics,
    st.builds(records.Subscription, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2), st.just(7)),
)
ids = st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 4)), max_size=2).map(tuple)
number_ranges = st.sampled_from(
    ((), (records.NumberRange(1, 3),), (records.NumberRange(2, 9), records.NumberRange(70_000, 1 << 40)))
)
numbered_ids = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 99)), max_size=2).map(tuple)


def rows(one: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(one, max_size=3).map(tuple)


def retained_rows(
    where: st.SearchStrategy[str], messages: st.SearchStrategy[records.RetainedMessage]
) -> st.SearchStrategy[m.RetainedRow]:
    return st.tuples(where, messages).map(lambda pair: m.RetainedRow(pair[0], pair[1].topic, pair[1]))


of_clients = st.one_of(
    st.builds(
        m.KeepRetained,
        rows(st.builds(m.RetainedRow, vhosts, topics, st.none(), times) | retained_rows(vhosts, retained)),
        st.integers(0, 3),
        st.integers(0, 30),
    ),
    st.builds(
        m.ClaimClientIds,
        nodes,
        st.just(""),
        rows(
            st.builds(
                m.ClaimRow,
                vhosts,
                client_ids,
                st.integers(1, 9),
                users,
                st.booleans(),
                seconds,
                st.lists(queues, max_size=2).map(tuple),
                wills,
            )
        ),
        times,
        st.integers(1, 3),
    ),
    st.builds(
        m.ReleaseClientIds,
        rows(st.builds(m.ReleaseRow, vhosts, client_ids, epochs, times, st.booleans(), st.none() | seconds)),
    ),
    st.builds(
        m.ChangeSessions,
        rows(
            st.builds(
                m.SessionRow,
                vhosts,
                client_ids,
                epochs,
                subscriptions,
                rows(topics),
                numbered_ids,
                ids,
                ids,
                ids,
                st.sampled_from(("", "7.0", "8.1")),
                number_ranges,
            )
        ),
    ),
    st.builds(m.SweepSessions, times, rows(st.builds(m.DueRow, vhosts, client_ids, epochs))),
    st.builds(m.WillsPublished, rows(st.integers(1, 5))),
)

commands: st.SearchStrategy[c.Command] = st.one_of(
    of_clients,
    of_clients,
    of_clients,
    declare_queue,
    declare_exchange,
    bind,
    bind,
    bind,
    ends.map(lambda values: c.Unbind(*values)),
    st.builds(c.DeleteQueue, vhosts, queues, st.one_of(st.none(), st.integers(1, 5))),
    st.builds(c.DeleteExchange, vhosts, any_exchange, st.booleans()),
    st.builds(c.AddVhost, st.sampled_from(["other", "/", ""]), names, tags),
    st.builds(c.DeleteVhost, vhosts),
    st.builds(c.SetVhostLimits, vhosts, limits, st.booleans()),
    st.builds(c.ClearVhostLimits, vhosts, st.sampled_from([None, "max-queues"])),
    st.builds(c.PutUser, st.sampled_from(["guest", "ann", ""]), names, names, tags),
    st.builds(c.DeleteUser, users),
    st.builds(c.SetUserLimits, users, limits, st.booleans()),
    st.builds(c.ClearUserLimits, users, st.sampled_from([None, "max-queues"])),
    st.builds(c.SetPermissions, users, vhosts, patterns, patterns, patterns),
    st.builds(c.ClearPermissions, users, vhosts),
    st.builds(c.SetTopicPermissions, users, vhosts, exchanges, patterns, patterns),
    st.builds(c.ClearTopicPermissions, users, vhosts, st.one_of(st.none(), exchanges)),
    st.builds(
        c.SetPolicy,
        vhosts,
        names,
        patterns,
        st.just("all"),
        st.integers(0, 9),
        st.dictionaries(texts, json_values, max_size=2),
        st.booleans(),
    ),
    st.builds(c.ClearPolicy, vhosts, names, st.booleans()),
    st.builds(c.SetParameter, names, vhosts, names, json_values),
    st.builds(c.ClearParameter, names, vhosts, names),
    st.builds(c.SetGlobalParameter, names, json_values),
    st.builds(c.ClearGlobalParameter, names),
    st.builds(c.NodeStarted, nodes, st.booleans()),
)
# Most runs begin with something to work on.
histories = st.lists(commands, max_size=30).map(lambda rest: [c.AddVhost("/"), c.PutUser("guest", "h", "s"), *rest])
