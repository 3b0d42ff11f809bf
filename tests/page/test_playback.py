"""A run is played back: the graph and the timeline show a second of it, by mouse or by keyboard."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.page.programs import ask, map_reduce
from weftline import Client

SET = """(slider, share) => {
  slider.value = 1000 * share;
  slider.dispatchEvent(new Event("input"));
}"""


def test_the_slider_goes_to_any_second(page: Page, url: str, client: Client) -> None:
    """In the middle of the maps none is done. In the reduce they are, and it runs."""
    with map_reduce(client, 3, tokens=30) as session:
        session.get("summary")
        calls = {call["name"]: call for call in session.graph()["calls"]}
    page.goto(f"{url}/ui/#/s/{session.id}")
    expect(page.get_by_text("Closed after")).to_be_visible()
    slider = page.get_by_role("slider", name="time of the run")
    graph = page.locator("#graph")
    whole = page.get_by_role("group", name="playback").locator("output")
    expect(graph.locator(".node.done")).to_have_count(4)
    end = max(call["ended_s"] for call in calls.values())
    number, unit = (slider.get_attribute("aria-valuetext") or "").split()[-2:]
    closed = float(number) / (1000 if unit == "ms" else 1)
    assert closed >= end - 0.01

    def go(second: float) -> None:
        slider.evaluate(SET, second / closed)

    (step,) = calls["map 0"]["steps"]
    go((step["sent_s"] + step["finished_s"]) / 2)
    expect(graph.locator(".node.running")).to_have_count(3)
    expect(graph.get_by_role("button", name="reduce")).to_have_accessible_name(
        "reduce, waiting, waiting"
    )
    expect(page.locator("#timeline .bar")).to_have_count(3)
    expect(page.locator("#timeline .cursor")).to_have_count(1)
    expect(page.get_by_text("Played back: the session after")).to_be_visible()
    (step,) = calls["reduce"]["steps"]
    go((step["sent_s"] + step["finished_s"]) / 2)
    expect(graph.locator(".node.done")).to_have_count(3)
    expect(graph.locator(".node.running")).to_have_count(1)
    expect(graph.locator(".node.critical")).to_have_count(0)  # it is not known before the end
    page.get_by_role("button", name="Present").click()
    expect(graph.locator(".node.done.critical")).to_have_count(2)
    expect(whole).to_have_text(re.compile(r"^(\S+ \S+) of \1$"))


def test_playback_by_keyboard(page: Page, url: str, client: Client) -> None:
    """Home goes to the start, an arrow key one step on, and Space plays to the end."""
    session = client.session()
    session.submit([ask("first", "Begin", "a", "topic")])
    session.submit([ask("last", "End", "z", "a")])
    session.set("topic", "rivers")
    session.get("z")
    page.goto(f"{url}/ui/#/s/{session.id}")
    graph = page.locator("#graph")
    expect(graph.locator(".node.done")).to_have_count(2)
    page.get_by_role("slider", name="time of the run").focus()
    page.keyboard.press("Home")
    expect(graph.locator(".node.later")).to_have_count(2)
    expect(graph.get_by_role("button", name="first")).to_have_accessible_name(
        "first, later, not submitted yet"
    )
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("slider")).to_have_js_property("value", "1")
    page.get_by_role("button", name="Play").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(graph.locator(".node.done")).to_have_count(2)
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_focused()
    session.close()
