"""The filters of the page: of the list and of a session's calls, kept in the address."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.programs import ask, map_reduce
from weftline import Client


def test_the_list_is_filtered_and_the_address_keeps_it(
    page: Page, url: str, client: Client
) -> None:
    """State, name and engine hold together. A reload shows the same rows."""
    for name in ("filter alpha", "filter beta"):
        with client.session() as session:
            session.submit([ask(name, "Write one.", "x")])
            session.get("x")
    waiting = client.session()
    waiting.submit([ask("filter gamma", "Write one.", "y", "topic")])
    page.goto(f"{url}/ui/")
    rows = page.locator("#sessions tbody tr")
    page.get_by_label("Name").press_sequentially("Filter ")
    expect(rows).to_have_count(3)
    page.get_by_label("Engine").select_option("null")
    expect(rows).to_have_count(2)  # the third has not reached an engine
    page.get_by_label("Name").fill("filter b")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("filter beta")
    page.get_by_label("State").select_option("done")
    assert page.url == f"{url}/ui/#/?state=done&name=filter+b&engine=null"
    page.reload()
    expect(rows).to_have_count(1)
    expect(page.get_by_label("Name")).to_have_value("filter b")
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_text("No session matches this filter.")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(rows.filter(has_text="filter gamma")).to_have_count(1)
    waiting.close()


def test_calls_are_filtered_and_a_selection_keeps_the_filter(
    page: Page, url: str, client: Client
) -> None:
    """The timeline shows what matches, the graph fades the rest, typing goes on."""
    session = map_reduce(client, 3)
    session.get("summary")
    page.goto(f"{url}/ui/#/s/{session.id}")
    bars = page.locator("#timeline .bar")
    expect(bars).to_have_count(4)
    page.get_by_label("Name").press_sequentially("map")
    expect(bars).to_have_count(3)
    expect(page.locator("#graph .node.out")).to_have_count(1)
    expect(page.locator("#graph .node.out")).to_have_accessible_name(re.compile("filtered out$"))
    expect(page.get_by_text("3 of 4 tasks")).to_be_visible()
    bars.first.click()
    assert "?name=map" in page.url
    expect(page.locator("#detail")).to_be_visible()
    page.reload()
    expect(bars).to_have_count(3)
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_text("Nothing that matches this filter has begun.")).to_be_visible()
    session.close()
