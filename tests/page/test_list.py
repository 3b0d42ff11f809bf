"""The list of sessions as a person uses it: names, times, order, groups, a search in prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.page.programs import ask
from weftline import Client
from weftline.local import local_server


@pytest.fixture(scope="module")
def own() -> Iterator[str]:
    """A server of its own with four sessions: two of one application, a chat, and an open one."""
    with local_server("--engine", "null", "--null-mode", "fixed") as url, Client(url) as client:
        for town in ("Bergen", "Porto"):
            with client.session() as session:
                session.submit([ask("describe", f"Describe {town}.", "x")])
                session.get("x")
        body = {
            "messages": [{"role": "user", "content": "Which river is longest?"}],
            "max_tokens": 4,
            "weftline": {"session_id": "mine", "open": True, "run_name": "nightly report"},
        }
        httpx2.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
        waits = client.session()
        waits.submit([ask("first", "Begin", "a", "topic"), ask("last", "End", "z", "a")])
        yield url
        waits.close()


def cells(page: Page, column: int) -> list[str]:
    found = page.locator(f"#sessions tbody tr td:nth-child({column})")
    return [text or "" for text in found.all_text_contents()]


def test_rows_tell_their_sessions_apart(page: Page, own: str) -> None:
    """A name, the time of day, and a duration, which is so far while the session is open."""
    page.goto(f"{own}/ui")
    expect(page.locator("#sessions tbody tr")).to_have_count(4)
    names = cells(page, 2)
    assert names[1:3] == ["nightly report", "Describe Porto."] and names[3] == "Describe Bergen."
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", time) for time in cells(page, 5))
    durations = cells(page, 6)
    assert [text.endswith("so far") for text in durations] == [True, True, False, False]


def test_a_click_on_a_head_sorts(page: Page, own: str) -> None:
    """Numbers begin with the largest, words with A; a second click turns the order round. The
    address keeps it.
    """
    page.goto(f"{own}/ui")
    rows = page.locator("#sessions tbody tr")
    page.get_by_role("button", name="calls").click()
    expect(page.get_by_role("columnheader", name="calls")).to_have_attribute(
        "aria-sort", "descending"
    )
    assert cells(page, 7) == ["2", "1", "1", "1"]
    page.get_by_role("button", name="name", exact=True).click()
    expect(rows.nth(1)).to_contain_text("Describe Bergen.")
    page.get_by_role("button", name="name").click()
    expect(rows.first).to_contain_text("nightly report")
    assert page.url.endswith("#/?order=-name")
    page.reload()
    expect(rows.first).to_contain_text("nightly report")


def test_sessions_are_grouped_by_application(page: Page, own: str) -> None:
    """Each application has a line with what its sessions sum up to."""
    page.goto(f"{own}/ui")
    page.get_by_label("Group by application").check()
    heads = page.locator("#sessions .group-head")
    expect(heads).to_have_count(3)
    expect(heads.filter(has_text="describe")).to_contain_text("2 sessions")
    assert page.url.endswith("#/?group=1")


def test_a_session_is_found_by_the_text_of_its_prompt(page: Page, own: str) -> None:
    """The server searches: the text is in no column of the list."""
    page.goto(f"{own}/ui")
    rows = page.locator("#sessions tbody tr")
    page.get_by_label("Text").press_sequentially("RIVER is")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("nightly report")
    expect(page.get_by_text("1 of 4 sessions")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(4)
