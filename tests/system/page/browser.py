"""A real Chromium for tests that are not coroutines themselves.

Playwright's own synchronous interface leaves an event loop running in the thread that uses it, and the tests of this
project call `asyncio.run` there. So its other interface runs in a thread of its own, and `Remote` waits for what that
does: a page, a locator or a keyboard can be used as in Playwright's documentation.

The browser is the one of the distribution (`chromium`, or what LEVERET_CHROMIUM names). Playwright's own builds are
never fetched.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import threading
from typing import Any

from tests.support.servers import until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# What is shown for some seconds only may be gone before a busy machine lets a test look.
REMEMBER_TOASTS = """
    window.toasted = [];
    document.addEventListener("DOMContentLoaded", () => new MutationObserver((changes) => {
        for (const change of changes)
            for (const node of change.addedNodes)
                if (node.classList?.contains("toast")) window.toasted.push(node.textContent);
    }).observe(document.body, {childList: true, subtree: true}));
"""
PATIENCE_S = 90.0  # More than the page gets, which says better what it waited for.


def missing() -> str | None:
    """Why no browser can be driven here; None if one can."""
    try:
        import playwright.async_api  # noqa: F401
    except ModuleNotFoundError:
        return "playwright is not installed: pip install playwright"
    return None if program() else "there is no Chromium here: apt-get install chromium, or set LEVERET_CHROMIUM"


def program() -> str | None:
    chosen = os.environ.get("LEVERET_CHROMIUM")
    return chosen or next((found for found in map(shutil.which, NAMES) if found), None)


class Browser:
    """One process of Chromium. `page` opens a window that shares nothing with the others."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="browser", daemon=True)
        self.thread.start()
        self.errors: list[str] = []  # Of all pages: what they did not catch, or was against the policy for contents.
        self.failed: list[str] = []  # Of all pages: scripts that could not be fetched, and why.
        self._driver: Any = None
        self._browser: Any = None

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def start(self) -> Browser:
        self.wait(self._start())
        return self

    async def _start(self) -> None:
        from playwright.async_api import async_playwright

        self._driver = await async_playwright().start()
        # A sandbox needs rights that neither root nor a container has; it is our own page that is shown. Names in
        # .example are this machine without being known as such, and get as little trust as any other over plain HTTP.
        # Pixels are made in fewer steps without a GPU that is only played by the processor.
        options = ["--no-sandbox", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        options += ["--disable-gpu", "--disable-gpu-rasterization", "--disable-software-rasterizer"]
        self._browser = await self._driver.chromium.launch(executable_path=program(), args=options)

    def page(self, **options: Any) -> Any:
        return Remote(self, self.wait(self._page(options)))

    def log_in(self, page: Any, url: str) -> None:
        """Loads a page of a node in a window, and logs in as guest."""
        self.failed.clear()
        page.goto(url)

        def is_there() -> bool:
            if self.failed:  # Chromium gives up requests when interfaces come or go, as those of other tests do.
                assert all("ERR_NETWORK_CHANGED" in one for one in self.failed), self.failed
                self.failed.clear()
                page.reload()
            return bool(page.locator("input[name=user]").count())

        until(is_there, "the page is there")
        page.get_by_label("User").fill("guest")
        page.get_by_label("Password").fill("guest")
        page.keyboard.press("Enter")
        page.locator("header.bar").wait_for()

    async def _page(self, options: dict[str, Any]) -> Any:
        context = await self._browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        await context.add_init_script(REMEMBER_TOASTS)
        page = await context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._on_console)
        page.on("requestfailed", self._on_request_failed)
        return page

    def _on_request_failed(self, request: Any) -> None:
        if request.resource_type == "script":
            self.failed.append(f"{request.url}: {request.failure}")

    def _on_console(self, message: Any) -> None:
        # A browser also notes each answer that is no success there, and some of those are what a test is about.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def stop(self) -> None:
        self.wait(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()

    async def _stop(self) -> None:
        if self._browser is not None:
            await self._browser.close()
        if self._driver is not None:
            await self._driver.stop()


class Remote:
    """Something of Playwright's, used from another thread."""

    def __init__(self, browser: Browser, thing: Any) -> None:
        self._browser = browser
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not callable(value):
            return self._wrapped(value)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._wrapped(self._browser.wait(self._call(value, arguments, options)))

        return call

    async def _call(self, method: Any, arguments: Any, options: Any) -> Any:
        result = method(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    def _wrapped(self, value: Any) -> Any:
        return Remote(self._browser, value) if type(value).__module__.startswith("playwright.") else value
