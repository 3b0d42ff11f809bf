"""The page says why a call ran on its engine."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.page.programs import ask
from weftline import Client


def test_a_call_shows_the_terms_of_each_engine(page: Page, url: str, client: Client) -> None:
    """The chosen engine is named, with the terms of its score."""
    with client.session() as session:
        session.submit([ask("headline", "Write one.", "x")])
        session.get("x")
        page.goto(f"{url}/ui/#/s/{session.id}")
        page.locator("#graph .node").click()
        expect(page.get_by_role("heading", name="Why this engine")).to_be_visible()
        row = page.get_by_role("table", name="placement").locator("tbody tr")
        expect(row).to_have_count(1)
        (call,) = session.graph()["calls"]
        (one,) = call["placement"]
        names = ("load", "missing_tokens", "prefix", "group", "gather", "score")
        terms = [one[name] for name in names]
        expect(row.locator("td")).to_have_text(
            ["null", *(f"{round(term):,}" for term in terms), "chosen"]
        )
