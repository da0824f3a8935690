"""Messages of STOMP as contents and back: the quick ways give the same as the thorough ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.delivery.batch import Span
from leveret.broker.session.message import content_of
from leveret.protocol.properties import Properties
from leveret.protocol.stomp.encoder import head_of
from leveret.protocol.tables import Field
from leveret.sessions.stomp.messages import KNOWN_MAX, HeaderLines, headers_of
from tests.support.machines import World
from tests.unit.sessions.stomp.clients import connected

SPECIAL = st.sampled_from(["", "a:b", "\\", "x\ny", "z\r", "\0", "%d"])
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | SPECIAL
FIELDS = st.one_of(
    TEXTS.map(lambda text: Field("S", text)),
    st.integers(-5, 5).map(lambda number: Field("l", number)),
    st.just(Field("t", True)),
)
NAMES = st.sampled_from(["content-length", "receipt", "a:b", "\\n", "x"]) | st.text("abc", min_size=1, max_size=4)


@given(
    st.none() | st.dictionaries(NAMES, FIELDS, max_size=4),
    st.none() | TEXTS,
    st.sampled_from([None, 1, 2]),
    st.none() | TEXTS,
    st.binary(max_size=5),
    st.booleans(),
)
def test_lines_are_written_as_if_everything_were_decoded(
    headers: dict[str, Field] | None, kind: str | None, mode: int | None, id_: str | None, body: bytes, escapes: bool
) -> None:
    content = content_of(Properties(kind, None, headers, mode, correlation_id=id_), body, 131_072)
    lines = HeaderLines(escapes)
    for _ in range(2):  # The second time the properties are known.
        assert lines.of(content) == head_of("", headers_of(content), escapes)[1:]


def test_few_properties_are_remembered() -> None:
    lines = HeaderLines(True)
    for number in range(100):
        content = content_of(Properties(correlation_id=str(number)), b"x", 131_072)
        assert lines.of(content) == b"correlation-id:%d\n" % number
    assert len(lines._known) <= KNOWN_MAX


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["r1", "r%d", "long-receipt", "a\\cb", " r"]),
            st.sampled_from(["", "v", "value:1", " v", "w" * 100, "\\n", "é"]),
            st.integers(0, 300),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_frames_of_a_form_are_stored_as_if_each_came_alone(sent: list[tuple[str, str, int]], has_length: bool) -> None:
    world = World()
    together, alone = connected(world), connected(world)
    texts = []
    for receipt, value, size in sent:
        length = f"content-length:{size}\n" if has_length else ""
        lines = f"{length}x:{value}\npersistent:true\nreceipt:{receipt}\ncontent-type:t\ny:1\n"
        texts.append(f"SEND\ndestination:/queue/QUEUE\n{lines}\n" + "b" * size + "^@\n")
    together.send("".join(texts).replace("QUEUE", "q1"))
    for text in texts:
        alone.connection.publisher.forms.forget()
        alone.send(text.replace("QUEUE", "q2"))
    assert together.heard() == alone.heard()
    if not sent:
        return
    first, second = (
        [
            (one, span.batch.kinds[at])
            for span in world.queue(name).ready
            if isinstance(span, Span)
            for at, one in enumerate(span.batch.contents)
        ]
        for name in ("q1", "q2")
    )
    assert len(first) == len(sent) and first == second
