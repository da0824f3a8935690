"""Definitions go out and come in: all that a cluster knows, or a vhost, as one JSON document.

An export is written piece by piece while the client takes it, and shows one moment however long that lasts. An import
looks through the whole document before it changes anything (`control_definitions`), so a mistake in it changes nothing;
RabbitMQ's stops in the middle. The document may be a form's file, which is how browsers send one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from leveret.management.api.common.base import Handlers, done
from leveret.management.http.http_messages import JSON, Problem, Response, bad_request, json_response
from leveret.management.http.json_decoding import VALUES_MAX, BadJson
from leveret.metadata import definitions
from leveret.node.admin.metadata.definitions import SLICE, Import, document_text
from leveret.node.cluster.consensus import AdminError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from leveret.management.app import Management
    from leveret.management.http.http_messages import Buffer, Request
    from leveret.management.http.routes import Router

logger = logging.getLogger("leveret.management")

PIECE_CHARACTERS: Final = 256 << 10
BYTES_PER_VALUE: Final = 8  # At least, in definitions; an exported binding has fifteen.
BOUNDARY_CHARACTERS_MAX: Final = 70
FORM_PARTS_MAX: Final = 100
FILE_NAME: Final = re.compile(r"[\w@.,+-]{1,100}")


class DefinitionHandlers(Handlers):
    def __init__(self, management: Management) -> None:
        super().__init__(management)
        self.importing = asyncio.Lock()  # One at a time: each is checked against what the one before has made.

    def add_to(self, router: Router) -> None:
        for path in ("/api/definitions", "/api/all-configuration", "/api/definitions/{vhost}"):
            router.add("GET", path, self.export)
            router.add("POST", path, self.load, None, self.rights.check_administrator)
        for path in ("/api/leveret/definitions/preview", "/api/leveret/definitions/preview/{vhost}"):
            router.add("POST", path, self.preview, None, self.rights.check_administrator)

    # -- Out -----------------------------------------------------------------------------------------------------

    async def export(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        vhost = request.parameters.get("vhost")
        if vhost is not None and vhost not in self.metadata.vhosts:
            raise bad_request("vhost_not_found")
        headers = []
        name = request.asked("download")
        if name is not None and FILE_NAME.fullmatch(name):
            # What is no ASCII cannot stand in a header but quoted (RFC 6266).
            value = f"filename={name}" if name.isascii() else f"filename*=UTF-8''{quote(name, safe='')}"
            headers.append(("content-disposition", f"attachment; {value}"))
        sections = definitions.gather(self.metadata, vhost)
        return Response(200, _pieces(sections, vhost), JSON, headers)

    # -- In ------------------------------------------------------------------------------------------------------

    async def load(self, request: Request) -> Response:
        given, vhost = await self._document(request)
        if given is not None:
            await self.to_the_end(self._in_turn(given, vhost))
        return done()

    async def preview(self, request: Request) -> Response:
        """Answer what an import would change, and what is wrong with the document."""
        given, vhost = await self._document(request)
        task = Import(self.node, vhost, (given or {}).get("rabbit_version"))
        await task.check(given or {}, vhost)
        return json_response(await task.preview())

    async def _document(self, request: Request) -> tuple[dict[str, Any] | None, str | None]:
        """The document, and the vhost that it is for. Raises Problem."""
        self.rights.check_administrator(request)
        vhost = request.parameters.get("vhost")
        if vhost is not None:
            self.check_vhost_exists(vhost)
        request.body = _file(request)
        if not request.body:
            return None, vhost
        try:
            # Who may import may import much, but nothing that is far larger in memory than in the file.
            given = await request.decoded(values_max=VALUES_MAX + len(request.body) // BYTES_PER_VALUE)
        except BadJson:
            raise bad_request("failed_to_parse_json") from None
        if not isinstance(given, dict):
            raise bad_request("definitions are a JSON object")
        if vhost is not None:  # RabbitMQ takes the rest of such a file for a remark.
            given = {name: value for name, value in given.items() if name in definitions.OF_A_VHOST}
        return given, vhost

    async def _in_turn(self, given: dict[str, Any], vhost: str | None) -> None:
        async with self.importing:
            await self._import(given, vhost)

    async def _import(self, given: dict[str, Any], vhost: str | None) -> None:
        task = Import(self.node, vhost, given.get("rabbit_version"))
        await task.check(given, vhost)
        if task.problems.count:
            raise Problem(400, "bad_request", "\n".join([*task.problems.told(), "Nothing was imported."]))
        try:
            await task.apply(lambda text: logger.info("definitions are imported over HTTP: %s", text))
        except AdminError as error:
            raise Problem(503, "service_unavailable", str(error)) from None
        for note in task.notes.told():
            logger.warning("definitions imported over HTTP: %s", note)
        if task.failures.count:
            raise Problem(400, "bad_request", "\n".join(task.failures.told()))


async def _pieces(sections: Mapping[str, Iterable[Any]], vhost: str | None) -> AsyncIterator[Buffer]:
    gathered: list[str] = []
    size = 0
    for number, text in enumerate(document_text(sections, vhost)):
        gathered.append(text)
        size += len(text)
        if size >= PIECE_CHARACTERS:
            yield "".join(gathered).encode()
            gathered, size = [], 0
        elif number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
    yield "".join(gathered).encode()


def _file(request: Request) -> bytes:
    """The document: the body, or the file in a form. Raises Problem."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        return request.body
    found = re.search(r'boundary="?([^";]+)', kind)
    if found is None or len(found[1]) > BOUNDARY_CHARACTERS_MAX:
        raise bad_request("a form without a boundary")
    for part in request.body.split(b"--" + found[1].encode("latin-1"), FORM_PARTS_MAX)[1:]:
        head, _, content = part.lstrip(b"\r\n").partition(b"\r\n\r\n")
        if re.search(rb'name="?file"?', head, re.IGNORECASE):
            return content.removesuffix(b"\r\n")
    raise bad_request("the form has no file")
