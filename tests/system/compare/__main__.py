from __future__ import annotations

import argparse
import sys
from collections import Counter

from leveret.client.amqp import BrokerError
from tests.support.machines import Conversation
from tests.system.compare import targets
from tests.system.compare.running import Records, keyed, run
from tests.system.compare.script import read_topic, topics
from tests.system.compare.verdict import (
    DIFFERENCES,
    PENDING,
    Difference,
    Key,
    compare,
    is_recorded,
    listed,
    load_record,
    save_record,
    write_pending,
)

Todo = dict[Key, Conversation]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.compare", description="Hold the same conversations with RabbitMQ and with Leveret."
    )
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"default: all of {', '.join(topics())}")
    parser.add_argument("--only", default="", help="titles with this text in them")
    parser.add_argument("--recorded", action="store_true", help="take RabbitMQ's answers from the records")
    parser.add_argument("--record", action="store_true", help="write RabbitMQ's answers into the records, and end")
    parser.add_argument("--summary", action="store_true", help="print numbers only")
    parser.add_argument("--prune", action="store_true", help="take from pending.txt what differs no more")
    parser.add_argument("--pend", action="store_true", help="put into pending.txt what differs now")
    options = parser.parse_args()
    unknown = set(options.topics) - set(topics())
    if unknown:
        parser.error(f"no such topic: {', '.join(sorted(unknown))}")
    todo = keyed({name: read_topic(name) for name in options.topics or topics()})
    todo = {key: each for key, each in todo.items() if options.only in key[1]}
    try:
        if options.record:
            return record(todo, bool(options.only))
        theirs = recorded(todo) if options.recorded else live(todo)
    except (targets.Missing, BrokerError) as error:
        print(error, file=sys.stderr)
        return 2
    with targets.leveret() as target:
        ours = run(target, todo, theirs)
    found = [found for key in todo if (found := compare(key, theirs[key], ours[key]))]
    return report(todo, found, options)


def live(todo: Todo) -> Records:
    with targets.rabbitmq() as target:
        return run(target, todo)


def recorded(todo: Todo) -> Records:
    """What is not recorded as it is written now is taken out of `todo`, and told."""
    found: Records = {}
    for topic in {topic for topic, _ in todo}:
        record = load_record(topic)
        for key in [key for key in todo if key[0] == topic]:
            if is_recorded(todo[key], record):
                found[key] = record[key[1]]
            else:
                print(f"not recorded: {key[0]}: {key[1]}")
                del todo[key]
    return found


def record(todo: Todo, partly: bool) -> int:
    """Each is held twice: what is not the same both times says nothing."""
    with targets.rabbitmq() as target:
        first = run(target, todo)
        target.quiet_s *= 2
        second = run(target, todo)
    unsteady = [found for key in todo if (found := compare(key, first[key], second[key]))]
    for each in unsteady:
        print(each)
    for topic in sorted({topic for topic, _ in todo}):
        made = load_record(topic) if partly else {}
        made |= {title: second[of, title] for of, title in todo if of == topic}
        save_record(topic, made)
    print(f"{len(todo)} conversations recorded, {len(unsteady)} of them unsteady")
    return 1 if unsteady else 0


def report(todo: Todo, found: list[Difference], options: argparse.Namespace) -> int:
    meant, pending = listed(DIFFERENCES), listed(PENDING)
    differing = {each.key for each in found}
    if options.prune or options.pend:
        known = {(topic, each.title) for topic in topics() for each in read_topic(topic)}
        kept = {key for key in (pending & known) - meant if key not in todo or key in differing}
        write_pending(kept | (differing - meant) if options.pend else kept)
    unlisted = [each for each in found if each.key not in meant]
    if not options.summary:
        for each in unlisted:
            print(f"{each}\n")
    stale = [key for key in sorted(meant & set(todo)) if key not in differing]
    for topic, title in stale:
        print(f"listed in docs/differences.md, and does not differ: {topic}: {title}")
    counts, wrong = Counter(topic for topic, _ in todo), Counter(each.key[0] for each in unlisted)
    accepted = Counter(topic for topic, _ in differing & meant)
    print(f"{'topic':24}{'conversations':>14}{'differ':>8}{'meant':>8}")
    for topic in counts:
        print(f"{topic:24}{counts[topic]:14}{wrong[topic]:8}{accepted[topic]:8}")
    print(f"{'all':24}{counts.total():14}{wrong.total():8}{accepted.total():8}")
    return 1 if unlisted or stale else 0


sys.exit(main())
