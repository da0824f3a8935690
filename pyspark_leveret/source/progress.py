"""How far a streaming query is behind its queues: for Spark's progress reports, and for Leveret's page.

Spark has no place for figures of a Python source in `query.lastProgress`. But it shows there the newest offset that the
source reports, whatever is in it, and never reads it. So that "offset" tells the lag of each queue: the messages that
are there, and in no batch yet.

    {"queues": {"orders": {"next": 1200, "lag": 300, "rate": 41.7}}, "lag": 300}

`next` is the end of the queue, in the same numbers as the other offsets, and `rate` the messages that came in a second.

With option `reportAs` the query is shown among the jobs of Leveret's page, with the same figures. A report that fails
does not harm the query: the first one is logged, and no more follow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from leveret.data.client import DataClient, DataError

RATE_S: Final = 1.0  # A rate is measured over this time at least.
REPORT_S: Final = 30.0  # Each report is written to the disks of all nodes.
QUEUES_SHOWN: Final = 15  # Those that are most behind: a report has at most 20 figures.

log: Final = logging.getLogger("pyspark_leveret")


class Progress:
    """The lag of a query by queue. `report_as` is the name of the query on Leveret's page, if it is shown there."""

    def __init__(self, report_as: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.report_as = report_as
        self.started_ms = int(time.time() * 1000)
        self.latest: dict[str, Any] | None = None
        self._clock = clock
        self._rates: dict[str, float] = {}
        self._before: tuple[float, dict[str, int]] | None = None  # When rates were measured last, and the ends then.
        self._reported_at: float | None = None

    def look(
        self, client: DataClient, arrived: Mapping[str, int], nexts: Mapping[str, int], lags: Mapping[str, int]
    ) -> None:
        """Notes the state of the queues: the numbers of their next messages, their ends as offsets, and the lags."""
        self._measure(dict(arrived))
        queues = {
            name: {"next": nexts[name], "lag": lag, **({"rate": self._rates[name]} if name in self._rates else {})}
            for name, lag in lags.items()
        }
        self.latest = {"queues": queues, "lag": sum(lags.values())}
        now = self._clock()
        if self.report_as is not None and (self._reported_at is None or now - self._reported_at >= REPORT_S):
            self._reported_at = now
            self._report(client, self.report_as, self.latest)

    def _measure(self, arrived: dict[str, int]) -> None:
        now = self._clock()
        if self._before is None:
            self._before = (now, arrived)
            return
        then, before = self._before
        if now - then >= RATE_S:
            self._rates = {
                name: round(max(number - before[name], 0) / (now - then), 1)
                for name, number in arrived.items()
                if name in before
            }
            self._before = (now, arrived)

    def _report(self, client: DataClient, name: str, latest: Mapping[str, Any]) -> None:
        queues: dict[str, Any] = latest["queues"]
        most = sorted(queues, key=lambda queue: (-queues[queue]["lag"], queue))[:QUEUES_SHOWN]
        figures: dict[str, float] = {"behind": latest["lag"], "queues": len(queues)}
        figures["arriving a second"] = round(sum(self._rates.values()), 1)
        figures |= {f"behind in {queue}": queues[queue]["lag"] for queue in most}
        summary = f"a streaming query of Spark, {latest['lag']:,} messages behind"
        value = {"state": "running", "summary": summary, "started": self.started_ms, "figures": figures}
        try:
            client.report_job(name, value)
        except DataError as error:
            self.report_as = None
            log.warning("the progress of '%s' is not shown at the broker: %s", name, error)
