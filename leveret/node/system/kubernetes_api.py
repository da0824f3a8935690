"""Asks Kubernetes for the addresses of the pods behind a service.

As RabbitMQ's plugin does: one request for the service's endpoints, with the token of the pod's service account. Pods
that are not ready are among them, since a node is not ready before it has a cluster. Their host names are not used:
a node that is asked tells its name itself.

A pod may have no right to ask, or no token at all, which is safer. The addresses of a headless service are in DNS, too,
so DNS is asked whenever the API gives no answer.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from leveret.client.tls import default_context

if TYPE_CHECKING:
    from leveret.node.config.settings import KubernetesService

logger = logging.getLogger("leveret")

REQUEST_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 4 << 20
FILE_BYTES_MAX: Final = 65_536

Resolve = Callable[[str], Awaitable[Sequence[str]]]


class NoAnswer(Exception):
    """The API cannot be asked, or refuses."""


class ServiceAddresses:
    """Finds the addresses of one service, by the API or else by DNS."""

    def __init__(self, service: KubernetesService, by_dns: Resolve) -> None:
        self.service = service
        self.by_dns = by_dns
        self._told = ""

    async def find(self, name: str) -> Sequence[str]:
        """Returns the addresses of the pods; none if nobody knows any yet."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, endpoints, self.service)
        except NoAnswer as error:
            if str(error) != self._told:
                self._told = str(error)
                logger.info("Kubernetes is not asked for the nodes behind %s but DNS is: %s", name, error)
        return await self.by_dns(name)


def endpoints(service: KubernetesService) -> list[str]:
    """Asks the API once, and waits for it. Raises NoAnswer."""
    token, namespace = _content(service.token_path), _content(service.namespace_path)
    connection: http.client.HTTPConnection
    if service.scheme == "https":
        try:
            context = default_context(service.cert_path)
        except OSError as error:
            raise NoAnswer(f"{service.cert_path}: {error.strerror or error}") from None
        connection = http.client.HTTPSConnection(service.host, service.port, timeout=REQUEST_S, context=context)
    else:
        connection = http.client.HTTPConnection(service.host, service.port, timeout=REQUEST_S)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/endpoints/{quote(service.service_name, safe='')}"
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(f"{service.host}:{service.port} does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status != 200 or len(body) > ANSWER_BYTES_MAX:
        raise NoAnswer(f"{service.host}:{service.port} answers {answer.status} for {path}")
    try:
        return addresses_of(json.loads(body))
    except (ValueError, RecursionError):
        raise NoAnswer(f"the answer of {service.host}:{service.port} for {path} cannot be read") from None


def addresses_of(found: Any) -> list[str]:
    """Returns the addresses in an Endpoints object, ready or not. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError("no object")
    addresses = []
    for subset in found.get("subsets") or ():
        for key in ("addresses", "notReadyAddresses"):
            for one in subset.get(key) or () if isinstance(subset, dict) else ():
                if not isinstance(one, dict) or not isinstance(one.get("ip"), str):
                    raise ValueError("an address without an ip")
                addresses.append(one["ip"])
    return sorted(set(addresses))


def _content(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(FILE_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoAnswer(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not text or not text.isprintable():
        raise NoAnswer(f"{path}: it holds no token and no name")
    return text
