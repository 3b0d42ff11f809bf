"""An agent on the page: its tools are steps, its turns are joined, and what it says is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.page.programs import ask, map_reduce
from weftline import Client
from weftline.local import local_server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SCRIPT = [
    {"when": "<tool_response>", "reply": "It is sunny."},
    {"when": "slowly", "reply": "word " * 400},
    {"when": "weather", "reply": CALL},
    {"when": "", "reply": "Well."},
]
WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a script, whose answers take 10 ms a word."""
    script = tmp_path_factory.mktemp("agent") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    how = ("--null-mode", "script", "--null-script", str(script), "--null-step-s", "0.01")
    with local_server("--engine", "null", *how) as url:
        yield url


class Agent:
    """An agent whose tools run here, in a session of its own."""

    def __init__(self, url: str, id: str) -> None:
        self.url, self.id = url, id
        self.messages: list[Any] = [{"role": "user", "content": "How is the weather in Rome?"}]

    def turn(self) -> None:
        body = {
            "messages": self.messages,
            "tools": [{"type": "function", "function": WEATHER}],
            "weftline": {"session_id": self.id, "open": True},
        }
        answer = httpx2.post(f"{self.url}/v1/chat/completions", json=body).raise_for_status()
        self.messages.append(answer.json()["choices"][0]["message"])

    def tool(self) -> None:
        [call] = self.messages[-1]["tool_calls"]
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "24 degrees"})


def test_an_agent_is_followed_through_its_tool(page: Page, own: str, pictures: Path) -> None:
    """While the tool runs the session says so. Then the path crosses both turns, and a click on the
    tool shows its arguments and its result.
    """
    page.set_viewport_size({"width": 1280, "height": 760})
    agent = Agent(own, "rome")
    agent.turn()
    page.goto(f"{own}/ui/#/s/rome")
    graph, glance = page.locator("#graph"), page.get_by_label("at a glance")
    expect(glance.locator(".badge")).to_have_text("waiting for a tool")
    expect(graph.get_by_role("button", name="get_weather")).to_have_accessible_name(
        "get_weather, running, tool, running"
    )
    agent.tool()
    agent.turn()
    expect(graph.locator(".node.done.critical")).to_have_count(3)
    expect(graph.locator(".edge.critical")).to_have_count(2)
    expect(page.locator(".sentence")).to_contain_text("of the time was waiting for tools")
    expect(glance.get_by_role("heading", name="How is the weather in Rome?")).to_be_visible()
    expect(glance.get_by_role("region", name="input")).to_have_text("How is the weather in Rome?")
    expect(glance.get_by_role("region", name="output")).to_have_text("It is sunny.")
    graph.get_by_role("button", name="get_weather").click()
    texts = page.get_by_role("region", name="prompt")
    expect(texts).to_contain_text('{"city": "Rome"}')
    expect(texts).to_contain_text("24 degrees")
    expect(page.locator("#timeline .bar")).to_have_count(3)
    page.screenshot(path=pictures / "page-agent.png")


def test_a_text_and_a_bar_grow_while_a_call_runs(page: Page, own: str) -> None:
    """The answer is read word by word, at a glance and beside the call, before it has ended."""
    with Client(own) as client:
        session = client.session()
        session.submit([ask("slow", "Speak slowly.", "x", tokens=2000)], detach=True)
        page.goto(f"{own}/ui/#/s/{session.id}")
        bar = page.locator("#timeline .bar .phase-running")
        expect(bar).to_have_count(1)
        expect(page.locator("#timeline .bar")).to_contain_text("so far")
        output = page.get_by_label("at a glance").get_by_role("region", name="output")
        expect(output).to_contain_text("word word word")
        early = len(output.text_content() or "")
        page.locator("#graph .node.running").click()
        expect(page.locator(".side .words")).to_contain_text("word word word")
        assert 0 < early < 5 * 400
        expect(page.locator("#graph .node.done")).to_have_count(1)
        expect(page.locator("#detail dd").first).to_have_text("done")
        expect(page.locator(".side .words")).to_have_count(0)
        expect(bar).to_have_count(0)
        session.close()


def test_a_row_opens_on_a_click_and_rows_are_in_pages(page: Page, own: str) -> None:
    """Fifty rows a page, which the address names. A filter goes back to the first."""
    with Client(own) as client:
        for n in range(60):
            with client.session() as session:
                session.submit([ask("paged", f"Say page {n}.", "x", tokens=1)])
    page.goto(f"{own}/ui/#/?name=paged")
    rows = page.locator("#sessions tbody tr")
    expect(rows).to_have_count(50)
    pages = page.get_by_role("navigation", name="pages")
    expect(pages).to_contain_text("1 to 50 of 60")
    pages.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(10)
    expect(rows.last).to_contain_text("Say page 0.")
    assert page.url.endswith("page=2")
    expect(pages.get_by_role("button", name="Older")).to_be_disabled()
    page.get_by_label("Name").fill("Say page 5")
    expect(rows).to_have_count(11)
    assert "page=" not in page.url
    rows.first.locator("td").nth(4).click()
    expect(page.get_by_label("at a glance").get_by_role("heading", level=2)).to_contain_text(
        "Say page 59."
    )


def test_two_sessions_stand_side_by_side(page: Page, own: str) -> None:
    """They are chosen in the list. A table has the steps of both."""
    with Client(own) as client:
        ids = []
        for parts in (2, 4):
            with map_reduce(client, parts) as session:
                session.get("summary")
                ids.append(session.id)
    page.goto(f"{own}/ui/")
    for id in ids:
        row = page.get_by_role("row").filter(has_text=id[:20])
        row.get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare the two sessions").click()
    expect(page.get_by_label("at a glance")).to_have_count(2)
    steps = page.locator("#compared tbody tr")
    expect(steps.locator("th")).to_have_text(["map 0", "map 1", "reduce", "map 2", "map 3"])
    last = steps.last.locator("td").all_text_contents()
    assert last[:5] == ["–"] * 5 and last[5] == "1"
    page.get_by_role("link", name="Open this session").nth(1).click()
    expect(page.locator("#graph .node")).to_have_count(5)


def test_a_telephone_has_room_for_every_view(page: Page, own: str) -> None:
    """At 390 pixels nothing is cut at the side, and texts have at least 7 pixels in the graph."""
    page.set_viewport_size({"width": 390, "height": 844})
    agent = Agent(own, "small")
    agent.turn()
    agent.tool()
    agent.turn()
    for view, sign in {
        "#/": "#sessions tbody tr",
        "#/s/small": "#timeline .bar",
        "#/engines": ".engine",
        "#/compare/small/small": "#compared tbody tr",
    }.items():
        page.goto(f"{own}/ui/{view}")
        expect(page.locator(sign).first).to_be_visible()
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) == 390, view
    page.goto(f"{own}/ui/#/s/small")
    expect(page.locator("#graph .node")).to_have_count(3)
    height = "document.querySelector('#graph .node text').getBoundingClientRect().height"
    assert page.evaluate(height) >= 7
