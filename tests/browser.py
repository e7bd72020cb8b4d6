"""A real Chromium for tests of the dashboard, driven by Playwright. Knows browsers, nothing of our pages.

Playwright comes from its wheel, the browser from Debian: nothing is downloaded when a test runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from tests.processes import PATIENCE_S
from tests.services import need_chromium

PATIENCE_MS = PATIENCE_S * 1000
NETWORK_CHANGES_MAX = 10
# The sandbox needs rights that root has not in a container; the pages are our own.
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]
# A server that is away or says no is part of some tests; what the browser prints about it is no defect.
EXPECTED_MESSAGES = re.compile(r"Failed to load resource|net::ERR_")

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def browser_running() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(need_chromium()), args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """One person with one browser: a cookie jar of their own. Notes what a page should never do."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.context: BrowserContext = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.faults: list[str] = []  # errors of scripts, and breaches of the Content-Security-Policy
        self.page = self.new_page()

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: {error}"))
        page.on("console", lambda message: self._note(page, message.type, message.text))
        return page

    def _note(self, page: Page, kind: str, text: str) -> None:
        if kind == "error" and not EXPECTED_MESSAGES.search(text):
            self.faults.append(f"{page.url}: {text}")

    def open(self, path: str) -> Page:
        """Go to a page. Chromium gives up if a network interface came or went, as those of others' containers do."""
        for tries_left in reversed(range(NETWORK_CHANGES_MAX)):
            try:
                self.page.goto(self.url + path)
                break
            except PlaywrightError as exc:
                if "ERR_NETWORK_CHANGED" not in exc.message or not tries_left:
                    raise
        return self.page

    def sign_in(self, token: str, path: str = "/jobs") -> Page:
        """Go to a page that asks for a sign-in first, and sign in."""
        page = self.open(path)
        page.get_by_label("Your token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(self.url + path)
        return page

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def accessibility_faults(self) -> list[str]:
        """What axe finds wrong on the open page."""
        found = Axe().run(self.page)
        return [
            f"{rule['id']}: {node['html'][:200]}" for rule in found.response["violations"] for node in rule["nodes"]
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
