"""The references of metrics and of the HTTP API, from a running node."""

from __future__ import annotations

import ast
import inspect
import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

from leveret import __version__
from leveret.management.api.monitoring.prometheus import CLUSTER, DETAILED, PREFIX
from tests.support.references import markdown as md
from tests.support.references.route_texts import BODIES, ROUTES
from tests.support.references.running_node import Metric, Observed, Route

METRICS: Final = """\
Every metric for Prometheus. `/metrics` has sums over the node, `/metrics/per-object` the figures of each queue, channel
and connection, `/metrics/detailed?family=…` those of the families that it names, under names that begin with
`rabbitmq_detailed_`. Names are those of RabbitMQ 3.10 where it has the same figure. More about some of them, and about
the port: [HTTP API](../http-api.md#metrics)."""
API: Final = """\
Every request of the HTTP API. [openapi.json](openapi.json) has the same for programs (OpenAPI 3.1). What the requests
mean, and who may make them: [HTTP API](../http-api.md), [bulk reads](../data.md), [web page](../page.md). `%2F` is the
vhost `/`."""
WHERE: Final = "ROUTES in tests/support/references/route_texts.py"
LISTED: Final = ("columns", "sort", "sort_reverse", "page", "page_size", "name", "use_regex")
MONITORING: Final = Path(__file__).parents[3] / "leveret" / "management" / "api" / "monitoring"
METHODS: Final = ("GET", "PUT", "POST", "DELETE")
KINDS: Final = ("COUNTER", "GAUGE", "UNTYPED", "HISTOGRAM")
_PAGE: Final = ("/", "/page/{file}")


# -- Metrics -------------------------------------------------------------------------------------------------------


def metrics(observed: Observed) -> str:
    def rows(prefix: str, *others: str) -> list[tuple[str, ...]]:
        return [
            (md.code(one.name), one.type, ", ".join(map(md.code, one.labels)), one.help)
            for one in observed.metrics
            if one.name.startswith(prefix) and not one.name.startswith(others)
        ]

    head = ("metric", "type", "labels", "")
    plain = rows(PREFIX, DETAILED, CLUSTER)
    detailed = sorted(f"{DETAILED}{one.name.removeprefix(DETAILED)}" for one in observed.metrics
                      if one.name.startswith(DETAILED))  # fmt: skip
    text = "The same figures as above for each object; labels name the object."
    return md.page(
        "Metrics", METRICS,
        f"## `/metrics` and `/metrics/per-object`\n\n{md.table(head, plain)}",
        f"## `/metrics/detailed`\n\n{text}\n\n{', '.join(map(md.code, detailed))}",
        f"## Of the cluster\n\nOnly in `/metrics/detailed`.\n\n{md.table(head, rows(CLUSTER))}",
    )  # fmt: skip


def missing_metrics(found: list[Metric]) -> list[str]:
    """Returns a line for each metric that the code names and no answer of the running node had."""
    told = {re.sub(f"^({DETAILED}|{CLUSTER}|{PREFIX})", "", one.name) for one in found}
    named = set()
    for file in MONITORING.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.elts if isinstance(node, ast.Tuple) else node.args if isinstance(node, ast.Call) else []
            if len(parts) >= 3 and isinstance(parts[0], ast.Constant) and _kind(parts[1]) in KINDS:
                named.add(str(parts[0].value))
    where = "tests/support/references/running_node.py makes the node that it is read from"
    return [f"the metric {name} was not seen; {where}" for name in sorted(named - told)]


def _kind(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


# -- Requests ------------------------------------------------------------------------------------------------------


def requests(observed: Observed) -> str:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for route in _shown(observed):
        words = route.path.strip("/").split("/")
        name = "/".join(words[:3] if words[1:2] == ["leveret"] else words[:2])
        groups.setdefault(f"/{name}" if not name.startswith("metrics") else "/metrics", []).append(
            (md.code(f"{route.method} {route.path}"), f"{summary(route)}.", _example(route))
        )
    parts = [f"## {name}\n\n{md.table(('request', '', 'body, as an example'), rows)}" for name, rows in groups.items()]
    return md.page("HTTP requests", API, *parts)


def _example(route: Route) -> str:
    body = BODIES.get(f"{route.method} {route.path}")
    return "" if body is None else md.code(json.dumps(body))


def _shown(observed: Observed) -> list[Route]:
    shown = [route for route in observed.routes if route.path not in _PAGE]
    return sorted(shown, key=lambda route: (route.path, METHODS.index(route.method)))


def summary(route: Route) -> str:
    told = ROUTES.get(f"{route.method} {route.path}")
    handler = route.handler.func if isinstance(route.handler, partial) else route.handler
    return told or (inspect.getdoc(handler) or "").partition("\n")[0].rstrip(".")


def missing_routes(observed: Observed) -> list[str]:
    shown = _shown(observed)
    known = {f"{route.method} {route.path}" for route in shown}
    found = [f"{one.method} {one.path} has no line in {WHERE}" for one in shown if not summary(one)]
    found += [f"{WHERE} has {name}, which is no request" for name in ROUTES if name not in known]
    return found + [f"BODIES has {name}, which is no request" for name in BODIES if name not in known]


def openapi(observed: Observed) -> str:
    paths: dict[str, dict[str, Any]] = {}
    for route in _shown(observed):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Leveret's HTTP API", "version": __version__, "license": {"name": "Apache-2.0"},
            "description": "RabbitMQ 3.10's management API, and requests of Leveret's own. Made by `make references`.",
        },
        "servers": [{"url": "http://127.0.0.1:15672"}],
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {
                "Error": {
                    "type": "object", "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
                    "required": ["error", "reason"],
                }
            },
            "responses": {
                "Error": {
                    "description": "Refused. `error` is a code, `reason` a sentence.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
            },
        },
    }  # fmt: skip
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _operation(route: Route) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    text = summary(route)
    if route.method == "GET" and text.startswith("Lists") and route.path.startswith("/api/"):
        parameters += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in LISTED]
    words = re.findall(r"[a-z0-9]+", f"{route.method} {route.path}".lower())
    found: dict[str, Any] = {"operationId": "_".join(words), "summary": text, "tags": [_tag(route.path)]}
    if parameters:
        found["parameters"] = parameters
    body = BODIES.get(f"{route.method} {route.path}")
    if body is not None:
        schema = {"type": "array" if isinstance(body, list) else "object"}
        found["requestBody"] = {"content": {"application/json": {"schema": schema, "example": body}}}
    if route.path in ("/api/auth", "/api/login"):
        found["security"] = []
    found["responses"] = {"2XX": _answer(route), "default": {"$ref": "#/components/responses/Error"}}
    return found


def _tag(path: str) -> str:
    words = path.strip("/").split("/")
    return words[0] if words[0] != "api" else "/".join(words[1:3]) if words[1] == "leveret" else words[1]


def _answer(route: Route) -> dict[str, Any]:
    if route.path.startswith("/metrics"):
        return {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    if route.path.endswith("/range"):
        content = {"application/vnd.leveret.sheet": {"schema": {"type": "string", "format": "binary"}}}
        return {"description": "A sheet", "content": content}
    if route.method in ("PUT", "DELETE"):
        return {"description": "Done"}
    return {"description": "The answer", "content": {"application/json": {"schema": {}}}}
