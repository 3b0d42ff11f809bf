"""The page's view of the advice: where prompts part, what it costs, and what to change."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

from weftline import Client, Output, semantic_function
from weftline.local import local_server

SHORT = Output(max_tokens=3)
RULES = "Answer from the handbook and say where it stands. " * 12


def answer(now: Any, question: Any, text: Any = SHORT) -> Any:
    """A clock stands before the rules."""


def judge(user: Any, question: Any, text: Any = SHORT) -> Any:
    """A name stands before twice as many rules."""


answer.__doc__ = f"It is {{{{input:now}}}}. {RULES}{{{{input:question}}}} {{{{output:text}}}}"
judge.__doc__ = f"For {{{{input:user}}}}: {RULES * 2}{{{{input:question}}}} {{{{output:text}}}}"
answered, judged = semantic_function(answer), semantic_function(judge)


def run(client: Client) -> None:
    """Four runs of two programs, whose prompts part at their beginnings."""
    for minute in range(4):
        with client.session() as session:
            answered(f"09:0{minute} <b>CET</b>", "Who may enter?")
            judged(f"user {minute}", "Was that right?")
            session.flush()
            for one in session.graph()["variables"]:
                if one["producer"]:
                    session.get(one["semantic_var_id"])


def test_advice_is_listed_by_tokens_lost(page: Page) -> None:
    """It appears while the tab is open. What differs between the two texts is marked, and is text:
    a tag in it makes no element.
    """
    with local_server("--engine", "null", "--log-prompts") as url, Client(url) as client:
        page.goto(f"{url}/ui/")
        page.get_by_role("link", name="Advice").click()
        expect(page).to_have_url(f"{url}/ui/#/advice")
        expect(page.get_by_text("No advice. Either the prompts of your programs")).to_be_visible()
        assert page.locator("nav a[aria-current]").inner_text() == "Advice"
        run(client)
        rows = page.locator("#advice tbody tr")
        expect(rows).to_have_count(2)
        expect(page.get_by_role("status")).to_have_text("2 findings")
        first, second = client.advice()
        assert (first["name"], second["name"]) == ("judge", "answer")
        expect(rows.nth(0)).to_contain_text(first["says"])
        expect(rows.nth(1)).to_contain_text(second["says"])
        expect(rows.nth(1).locator("td.number")).to_have_text(
            ["100 %of 3", f"{second['lost_tokens']:,}", "0 %"]
        )
        expect(rows.nth(1)).to_contain_text("It is ")
        expect(rows.nth(1).locator("dd")).to_have_text(["09:02 <b>CET</b>", "09:03 <b>CET</b>"])
        expect(rows.nth(1).locator("del")).to_have_text("2")
        expect(rows.nth(1).locator("ins")).to_have_text("3")


def test_words_of_prompts_are_not_shown_where_they_are_not_logged(
    page: Page, url: str, client: Client
) -> None:
    """The page says so. The names of variables and the template's own text are there."""
    run(client)
    page.goto(f"{url}/ui/#/advice")
    row = page.locator("#advice tbody tr").filter(has_text="`now`")
    expect(row).to_contain_text(re.compile(r"variable `now`, \d+ tokens behind it"))
    expect(page.get_by_text("only if it runs with --log-prompts")).to_be_visible()
    expect(page.locator("#advice dd")).to_have_count(0)
    expect(page.locator("main")).not_to_contain_text("09:0")
