"""What jobs have found last: `PUT /api/leveret/jobs/{vhost}/{name}`, a small object of JSON for each job.

    {"state": "ok", "summary": "nothing lost", "started": 1700000000000, "finished": 1700000042000,
     "figures": {"messages": 120000, "lost": 0}, "detail": "…", "report": "/data/audit/report.html"}

Only `state` must be there: `running`, `ok`, `warning` or `failed`. A result replaces the one before, so that a job that
runs every minute takes no more room than one that ran once.

They are kept in the metadata, as parameters of the component `leveret-job`, so every node shows them and no file has
to be shared. That is why they are small (`VALUE_BYTES_MAX`) and few (`JOBS_MAX`): each is on every node's disk. They do
not belong to what a cluster is set up as, and exported definitions leave them out.

Who may configure a queue called `leveret-job-NAME` may report as that job, whatever tags they have: a job's user needs
no power over the broker.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, bad_request, json_response, not_found
from leveret.metadata.model.commands import ClearParameter, SetParameter
from leveret.metadata.rules.placement import JOBS

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.management.http.routes import Router

VALUE_BYTES_MAX: Final = 8 << 10
JOBS_MAX: Final = 200  # Of the whole cluster.
NAME_CHARACTERS_MAX: Final = 100
STATES: Final = ("running", "ok", "warning", "failed")
TEXTS: Final = ("summary", "detail", "report")
TIMES: Final = ("started", "finished")
FIGURES_MAX: Final = 20
NUMBER_MAX: Final = 1 << 63


class JobHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/jobs", self.jobs)
        router.add("PUT", "/api/leveret/jobs/{vhost}/{name}", self.report)
        router.add("DELETE", "/api/leveret/jobs/{vhost}/{name}", self.forget)

    async def jobs(self, request: Request) -> Response:
        self.rights.check(request)
        found = [
            {"vhost": vhost, "name": name, **(value if isinstance(value, dict) else {})}
            for (component, vhost, name), value in self.node.metadata.parameters.items()
            if component == JOBS and self.rights.may_see(request, vhost)
        ]
        return json_response(sorted(found, key=lambda job: (job["vhost"], job["name"])))

    def _named(self, request: Request) -> tuple[str, str]:
        """Raises Problem."""
        vhost, name = request.parameters["vhost"], request.parameters["name"]
        if vhost not in self.node.metadata.vhosts:
            raise not_found()
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
            raise bad_request(f"the name of a job is text of 1 to {NAME_CHARACTERS_MAX} characters")
        self.check_configure(request, vhost, f"{JOBS}-{name}")
        return vhost, name

    async def report(self, request: Request) -> Response:
        vhost, name = self._named(request)
        if len(request.body) > VALUE_BYTES_MAX:
            raise bad_request(f"a result has at most {VALUE_BYTES_MAX} bytes")
        value = checked(await request.json())
        parameters = self.node.metadata.parameters
        if (JOBS, vhost, name) not in parameters and sum(key[0] == JOBS for key in parameters) >= JOBS_MAX:
            raise bad_request(f"there are {JOBS_MAX} jobs already; delete one that is not run any more")
        value["reported"] = int(time.time() * 1000)
        await self.change(SetParameter(JOBS, vhost, name, value))
        return Response(204)

    async def forget(self, request: Request) -> Response:
        vhost, name = self._named(request)
        if (JOBS, vhost, name) not in self.node.metadata.parameters:
            raise not_found()
        await self.change(ClearParameter(JOBS, vhost, name))
        return Response(204)


def checked(asked: dict[str, Any]) -> dict[str, Json]:
    """A result as it is kept. Raises Problem."""
    unknown = asked.keys() - {"state", "figures", *TEXTS, *TIMES}
    if unknown:
        raise bad_request(f"a result has no {min(unknown)}")
    if asked.get("state") not in STATES:
        raise bad_request(f"state must be one of {', '.join(STATES)}")
    for key in TEXTS:
        if not isinstance(asked.get(key, ""), str):
            raise bad_request(f"{key} must be a string")
    for key in TIMES:
        if not _is_number(asked.get(key, 0)):
            raise bad_request(f"{key} must be a number of milliseconds since 1970")
    figures = asked.get("figures", {})
    if not isinstance(figures, dict) or len(figures) > FIGURES_MAX or not all(map(_is_figure, figures.values())):
        raise bad_request(f"figures must be an object of at most {FIGURES_MAX} numbers or strings")
    value: dict[str, Json] = json.loads(json.dumps(asked))
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX  # NaN is not.


def _is_figure(value: object) -> bool:
    return isinstance(value, str) or _is_number(value)
