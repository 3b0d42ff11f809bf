"""The documentation's site in Chromium: its home page at two widths, its menu and its search."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Page, expect

ROOT = Path(__file__).parents[2]


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that writes no line for a request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, built from this checkout."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_home_page_fits(page: Page, site: str, width: int) -> None:
    """Nothing is wider than the window. The picture is drawn, and code has a button to copy it."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site)
    expect(page.get_by_role("heading", name="weftline")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.querySelector('article img').naturalWidth") > 0
    expect(page.locator("article .md-code__button, article .md-clipboard").first).to_be_attached()


def test_the_menu_has_four_parts_and_the_reference(page: Page, site: str) -> None:
    """The page of the HTTP interface is made with the site, and stands in the menu."""
    page.goto(site)
    tabs = [one.strip() for one in page.locator(".md-tabs__link").all_inner_texts()]
    assert tabs == ["Home", "Tutorial", "How-to", "Reference", "Explanation"]
    page.locator(".md-tabs__link", has_text="Reference").click()
    page.locator(".md-nav__link", has_text="HTTP").first.click()
    expect(page.locator("#post-v1submit")).to_be_visible()


def test_a_word_is_found(page: Page, site: str) -> None:
    """The search runs in the browser, without another host."""
    page.goto(site)
    page.locator("input[name=query]").fill("idempotency")
    expect(page.locator(".md-search-result__link").first).to_be_visible()


def test_the_palette_has_a_dark_mode(page: Page, site: str) -> None:
    """It follows the system, and a button changes it."""
    page.emulate_media(color_scheme="dark")
    page.goto(site)
    body = page.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    page.locator("label[title=Light]:visible").click()
    expect(body).to_have_attribute("data-md-color-scheme", "default")
