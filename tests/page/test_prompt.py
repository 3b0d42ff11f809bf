"""A call's prompt on the page, and the engines that were considered for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.page.programs import ask
from weftline import Client, Input, Output, semantic_function
from weftline.local import local_server

TWO_ENGINES = """
[[engine]]
engine = "null"
name = "left"
null_mode = "words"
[[engine]]
engine = "null"
name = "right"
null_mode = "words"
"""
LONG = "This text is the same in both calls. " * 20
STRIPPED = Input(transforms=[{"op": "strip"}, {"op": "str"}])


@semantic_function
def repeat(text: Any = STRIPPED, said: Any = Output(max_tokens=3)) -> Any:  # noqa: B008
    """Say {{input:text}} again: {{output:said}}"""


def opened(page: Page, url: str, session: str, name: str) -> None:
    """Open a session, and choose its call of this name."""
    page.goto(f"{url}/ui/#/s/{session}")
    page.locator("#graph").get_by_role("button", name=name).click()


def test_a_second_call_goes_where_its_prefix_is(page: Page, tmp_path: Path) -> None:
    """The cached part of its prompt is shaded. The other engine would have had to compute it."""
    config = tmp_path / "weftline.toml"
    config.write_text(TWO_ENGINES)
    with (
        local_server("--config", str(config)) as url,
        Client(url) as client,
        client.session() as session,
    ):
        for name in ("first", "second"):
            session.submit([ask(name, LONG + name, name, tokens=2)])
            session.get(name)
        calls = {call["name"]: call for call in session.graph()["calls"]}
        assert calls["second"]["engine"] == calls["first"]["engine"]
        opened(page, url, session.id, "second")
        rows = page.get_by_role("table", name="placement").locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text(calls["first"]["engine"])
        expect(rows.first).to_contain_text("chosen")
        chosen, other = calls["second"]["placement"]
        assert chosen["missing_tokens"] < other["missing_tokens"]
        shaded = page.get_by_role("region", name="prompt").locator(".cached")
        assert LONG.startswith(shaded.inner_text()[:100]) and len(shaded.inner_text()) > 300
        opened(page, url, session.id, "first")
        expect(page.get_by_role("heading", name="first")).to_be_visible()
        expect(shaded).to_have_count(0)


def test_transforms_stand_behind_their_variable(page: Page, url: str, client: Client) -> None:
    """The value is the variable's own, as other calls read it too."""
    with client.session() as session:
        repeat("  a word ").get()
        opened(page, url, session.id, "repeat")
        prompt = page.get_by_role("region", name="prompt")
        expect(prompt).to_contain_text("Say   a word  | strip | str again: ")


def test_filters_and_playback_of_ten_thousand_calls(page: Page, url: str, client: Client) -> None:
    """A filter leaves the call that was named. The slider goes back to the start of the run."""
    calls = [ask("map", f"Summarise {n}.", f"s{n}", tokens=1) for n in range(9_999)]
    session = client.session()
    session.submit([*calls, ask("needle", "Find me.", "found", tokens=1)])
    session.get("found")
    session.get("s9998")
    page.goto(f"{url}/ui/#/s/{session.id}")
    expect(page.locator("#timeline .bar").first).to_be_visible()
    page.get_by_label("Name").fill("needle")
    expect(page.locator("#timeline").get_by_role("button", name="needle")).to_have_count(1)
    expect(page.locator("#timeline").get_by_role("button", name="map")).to_have_count(0)
    page.get_by_label("Name").fill("")
    expect(page.locator("#graph .node.done")).to_have_count(2)
    page.get_by_role("slider", name="time of the run").focus()
    page.keyboard.press("Home")
    expect(page.locator("#graph .node.later")).to_have_count(2)
    page.get_by_role("button", name="Present").click()
    expect(page.locator("#graph .node.done")).to_have_count(2)
    session.close()
