"""A server on the null engine, and a real Chromium that looks at its page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from weftline import Client
from weftline.local import local_server

ACTION_MS = 60_000  # the longest wait for something that the page should show


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium of the system: playwright's own build cannot be installed without its download."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium is not None, "the page is tested in Chromium: run `apt-get install chromium`"
    expect.set_options(timeout=ACTION_MS)
    with sync_playwright() as playwright:
        # Root may not use Chromium's own sandbox; the page under test is ours.
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """A server whose answers take a moment: 10 ms a token."""
    with local_server("--engine", "null", "--null-mode", "fixed", "--null-step-s", "0.01") as url:
        yield url


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page. An error or a warning in its console fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(ACTION_MS)
    faults: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # Refused requests are logged by the browser; the tests of keys and lost servers mean them.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            faults.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    context.close()
    assert faults == []


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: into docs/images with WEFTLINE_PICTURES=1, else to be thrown away."""
    if os.environ.get("WEFTLINE_PICTURES"):
        return Path(__file__).parents[2] / "docs" / "images"
    return tmp_path
