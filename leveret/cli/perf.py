"""`leveret perf`."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import TYPE_CHECKING

from leveret.base.exit_codes import USAGE

if TYPE_CHECKING:
    from leveret.perf.report import Interval

FAILED = 1
LINES_BETWEEN_HEADINGS = 20


def perf(parsed: argparse.Namespace) -> int:
    from leveret.client.amqp import BrokerError
    from leveret.perf import report
    from leveret.perf.options import to_options
    from leveret.perf.runner import run

    name = f"perf-{secrets.token_hex(4)}"
    try:
        options = to_options(parsed, name)
    except ValueError as error:
        print(f"leveret perf: {error}\nTry: leveret perf --help", file=sys.stderr)
        return USAGE
    confirms = options.window is not None
    out = sys.stderr if options.json else sys.stdout
    shown = 0

    def on_interval(interval: Interval) -> None:
        nonlocal shown
        if not options.quiet:
            if shown % LINES_BETWEEN_HEADINGS == 0:
                print(report.heading(confirms), file=out)
            print(report.line(interval, confirms), file=out, flush=True)
            shown += 1

    try:
        result = run(options, name, on_interval)
    except BrokerError as error:
        print(f"leveret perf: {', '.join(map(str, options.addresses))}: {error}", file=sys.stderr)
        return FAILED
    if options.json:
        print(json.dumps(result.as_json(name), indent=2))
    else:
        print(report.summary(result, confirms, bool(options.consumers)), flush=True)
    for text in result.errors:
        print(f"leveret perf: {text}", file=sys.stderr)
    return FAILED if result.errors else 0
