"""The files of the page, as they are served."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from leveret.management import page
from leveret.management.http.http_messages import Problem, Request, Response
from leveret.management.http.routes import Router

ROOT = Path(__file__).parents[3]


async def ask(path: str, prefix: str = "", method: str = "GET", **headers: str) -> Response:
    router = Router(prefix)
    handlers = page.PageHandlers(prefix)
    handlers.add_to(router)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(method, path, [], given, "127.0.0.1")
    assert handlers.is_open(request)
    handler, request.parameters = router.find(method, path)
    return await handler(request)


def header(response: Response, name: str) -> str | None:
    return dict(response.headers).get(name)


@pytest.mark.parametrize(
    ("path", "prefix", "media_type"),
    [
        ("/", "", "text/html; charset=utf-8"),
        ("/rabbit/", "/rabbit", "text/html; charset=utf-8"),
        ("/page/main.js", "", "text/javascript; charset=utf-8"),
        ("/rabbit/page/page.css", "/rabbit", "text/css; charset=utf-8"),
        ("/page/leveret.svg", "", "image/svg+xml"),
    ],
)
async def test_a_file(path: str, prefix: str, media_type: str) -> None:
    response = await ask(path, prefix)
    assert (response.status, response.type) == (200, media_type)
    assert response.body
    assert header(response, "x-content-type-options") == "nosniff"


async def test_only_our_own_scripts_run_and_nobody_frames_the_page() -> None:
    policy = header(await ask("/"), "content-security-policy") or ""
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["default-src"] == "'none'"
    assert parts["script-src"] == parts["style-src"] == parts["connect-src"] == "'self'"
    assert parts["frame-ancestors"] == parts["form-action"] == parts["base-uri"] == "'none'"


async def test_a_browser_that_has_a_file_is_not_sent_it_again() -> None:
    tag = header(await ask("/page/main.js"), "etag")
    assert tag is not None
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = await ask("/page/main.js", if_none_match=known)
        assert (again.status, again.body) == (304, b"")
        assert header(again, "etag") == tag
    assert (await ask("/page/main.js", if_none_match='"other"')).status == 200


@pytest.mark.parametrize("name", ["none.js", "..%2Fpage.py", "%2Fetc%2Fpasswd", "__init__.py", "."])
async def test_nothing_else_can_be_had(name: str) -> None:
    with pytest.raises(Problem) as caught:
        await ask(f"/page/{name}")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/api/whoami"), ("POST", "/"), ("PUT", "/page/main.js"), ("GET", "/pages"), ("GET", "/x/")],
)
def test_all_else_needs_credentials(method: str, path: str) -> None:
    assert not page.PageHandlers("").is_open(Request(method, path, [], {}, "127.0.0.1"))


# -- What the files say of each other ------------------------------------------------------------------------------


def scripts() -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in page.FOLDER.glob("*.js")}


def test_what_is_imported_is_there() -> None:
    texts = scripts()
    for name, text in texts.items():
        for module, names in [(m[2], m[1]) for m in re.finditer(r'import (.*?) from "\./(.*?)";', text, re.DOTALL)]:
            assert module in texts, f"{name} imports {module}"
            wanted = names.strip("{} \n").split(",") if "{" in names else []
            for one in filter(None, map(str.strip, wanted)):
                pattern = rf"export (?:async )?(?:function|const|class) {re.escape(one)}\b"
                assert re.search(pattern, texts[module]), f"{name} imports {one} of {module}"


def test_nothing_is_imported_in_vain() -> None:
    for name, text in scripts().items():
        for match in re.finditer(r"import \{(.*?)\} from", text, re.DOTALL):
            for one in filter(None, map(str.strip, match[1].split(","))):
                assert len(re.findall(rf"\b{re.escape(one)}\b", text)) > 1, f"{name} imports {one}"


def test_the_policy_for_contents_is_kept() -> None:
    """No markup in scripts, no code or style in markup, nothing from elsewhere."""
    index = (page.FOLDER / page.INDEX).read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", index)
    for name, text in {**scripts(), page.INDEX: index}.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not [url for url in re.findall(r"https?://[^\s\"']+", text) if "www.w3.org" not in url], name


def test_the_files_are_part_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "management/page/*" in project["tool"]["setuptools"]["package-data"]["leveret"]
