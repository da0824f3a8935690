"""The reference of policy keys, arguments and headers: names from the checks of the code, meanings from
`argument_texts`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from leveret.broker.routing import consistent_hash, delayed_exchange, router
from leveret.broker.session import arguments as checks
from leveret.metadata.rules import policies
from leveret.metadata.rules import policy_validation as validation
from leveret.metadata.rules.ha_policy import HA_ARGUMENTS, MIRROR_ARGUMENTS
from leveret.protocol import received_from
from leveret.protocol.bundles import ARGUMENT as BUNDLES
from leveret.protocol.origins import NAME as ORIGIN
from tests.support.references import argument_texts as texts
from tests.support.references import markdown as md

ABOUT: Final = """\
Every key of a policy, every argument of a queue, an exchange, a binding and a consumer that has an effect, and the
headers that the broker reads and sets. Which policy applies to which queue is told in
[definitions and policies](../definitions.md#policies), and all of mirroring in [mirrored queues](../mirroring.md).
Other arguments are stored and shown, and have no effect; other policy keys are refused."""
SOURCES: Final = Path(__file__).parents[3] / "leveret"
WHERE: Final = "tests/support/references/argument_texts.py"


def policy_keys() -> set[str]:
    return {*validation._RULES, *validation._HA_KEYS}


def queue_arguments() -> set[str]:
    others = set[str]().union(*checks.OF_OTHER_TYPES.values())
    return {*checks._CHECKS, *others, *HA_ARGUMENTS, *MIRROR_ARGUMENTS, "x-queue-type", "x-dead-letter-exchange"}


def exchange_arguments() -> set[str]:
    hashed = {consistent_hash.HEADER, consistent_hash.PROPERTY}
    downstream = {received_from.MAX_HOPS_ARGUMENT, received_from.DOWNSTREAM_NAME, received_from.DOWNSTREAM_VHOST}
    return {"alternate-exchange", router.SINGLE_TARGET, delayed_exchange.DELAYED_TYPE, *hashed, *downstream}


def consumer_arguments() -> set[str]:
    named = re.findall(r'"(x-[a-z-]+)"', inspect.getsource(checks.check_consume_arguments))
    found = {*set[str]().union(*checks._CONSUMERS_OF_OTHER_TYPES.values()), *named, ORIGIN, BUNDLES}
    return found - {"x-queue-type"}  # The queue's own.


def missing() -> list[str]:
    found = []
    for what, names, told in (
        ("policy key", policy_keys(), {*texts.POLICY_KEYS}),
        ("argument of a queue", queue_arguments(), {name for name in queue_arguments() if _of_queue(name) is not None}),
        ("argument of a consumer", consumer_arguments(), {*texts.CONSUMER_ARGUMENTS}),
        ("argument of an exchange", exchange_arguments(), {*texts.EXCHANGE_ARGUMENTS}),
    ):
        found += [f"the {what} {name} has no line in {WHERE}" for name in sorted(names - told)]
        found += [f"{WHERE} has {name}, which is no {what}" for name in sorted(told - names)]
    known = {*queue_arguments(), *consumer_arguments(), *exchange_arguments(), *texts.BINDING_ARGUMENTS}
    known |= {*texts.HEADERS, *texts.OTHER_NAMES}
    strange = {name for name in _named() - known if not name.startswith("x-mqtt-")}
    return found + [f"{name} is named in the code and explained nowhere in {WHERE}" for name in sorted(strange)]


def _named() -> set[str]:
    """Returns the strings of the code that look like an argument or a header."""
    found = set()
    for file in SOURCES.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if '"x-' in text:
            found |= {
                node.value for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                and re.fullmatch(r"x-[a-z-]*", node.value)
            }  # fmt: skip
    return found


def _of_queue(name: str) -> texts.Text | None:
    """Returns the text of an argument: its own, or that of the policy key of the same name."""
    return texts.QUEUE_ARGUMENTS.get(name) or texts.POLICY_KEYS.get(name.removeprefix("x-"))


def reference() -> str:
    rows: list[tuple[str, ...]] = [
        (
            md.code(name), text.values, text.meaning,
            "exchanges" if name in validation._OF_EXCHANGES else _types(name, policies.FOREIGN),
            "yes" if name in validation.OPERATOR_KEYS else "",
        )
        for name, text in sorted(texts.POLICY_KEYS.items())
    ]  # fmt: skip
    head = ("key", "values", "", "applies to", "operator policy")
    keys = f"## Policy keys\n\n{md.table(head, rows)}"
    rows = [
        (md.code(name), text.values, text.meaning, _types(name, checks.OF_OTHER_TYPES))
        for name in sorted(queue_arguments())
        if (text := _of_queue(name)) is not None
    ]
    queues = f"## Arguments of queues\n\n{md.table(('argument', 'values', '', 'types'), rows)}"
    others = [
        f"## {title}\n\n{md.table((head, 'values', ''), ((md.code(name), *text) for name, text in sorted(of.items())))}"
        for title, head, of in (
            ("Arguments of exchanges", "argument", texts.EXCHANGE_ARGUMENTS),
            ("Arguments of bindings", "argument", texts.BINDING_ARGUMENTS),
            ("Arguments of consumers", "argument", texts.CONSUMER_ARGUMENTS),
            ("Headers", "header", texts.HEADERS),
        )
    ]
    return md.page("Policy keys and arguments", ABOUT, keys, queues, *others)


def _types(name: str, foreign: Mapping[str, Collection[str]]) -> str:
    """Returns the types of queues that know a name. `foreign`: the names that each type does not know."""
    found = [kind for kind in checks.QUEUE_TYPES if name not in foreign[kind]]
    return "all queues" if len(found) == len(checks.QUEUE_TYPES) else ", ".join(found)
