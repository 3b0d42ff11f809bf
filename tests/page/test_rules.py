"""What the page may load, what a run cost, and a wait for a step of the client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2
from playwright.sync_api import Browser, Page, expect

from tests.page.programs import ask
from weftline import Client, Output, client_step, semantic_function
from weftline.local import local_server

RULES = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src data:",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
}
INLINE = """() => {
  const script = document.createElement("script");
  script.textContent = "document.title = 'taken'";
  document.body.append(script);
  return document.title;
}"""


def test_nothing_inline_and_no_other_host_runs(browser: Browser, url: str) -> None:
    """Every file names the rules, and Chromium keeps them: a script in the text does not run."""
    for name in ("", "app.js", "engines.js", "advice.js", "style.css"):
        header = httpx2.get(f"{url}/ui/{name}").headers["content-security-policy"]
        assert set(header.split("; ")) == RULES
    page = browser.new_page()
    page.goto(f"{url}/ui/")
    assert page.evaluate(INLINE) == "weftline"
    asked = page.evaluate("fetch('http://127.0.0.2:9/').then(() => 'sent', () => 'refused')")
    assert asked == "refused"
    page.close()


def test_the_list_and_a_call_say_what_they_cost(page: Page, tmp_path: Path) -> None:
    """With prices the list has what a session cost and saved, and a call what it cost."""
    config = tmp_path / "weftline.toml"
    config.write_text('[price."null"]\nprompt = 1000.0\ncached = 100.0\noutput = 2000.0\n')
    with local_server("--engine", "null", "--config", str(config)) as url, Client(url) as client:
        session = client.session()
        session.submit([ask("headline", "Write one", "x", tokens=5)])
        session.get("x")
        (row,) = client.sessions()
        page.goto(f"{url}/ui/")
        heads = page.locator("#sessions th")
        expect(heads).to_contain_text(["prompt tokens", "cached", "output tokens", "cost", "saved"])
        cells = page.locator("#sessions tbody td.number")
        expect(cells.nth(-2)).to_have_text(f"{row['cost']:#.3g}")
        assert row["cost"] > 0
        page.goto(f"{url}/ui/#/s/{session.id}")
        page.locator("#graph .node").click()
        expect(page.locator("#detail")).to_contain_text(re.compile("cost.*saved"))
        session.close()


FEW = Output(max_tokens=3)


@semantic_function
def word(topic: Any, text: Any = FEW) -> Any:
    """A word about {{input:topic}}: {{output:text}}"""


@semantic_function
def told(found: Any, text: Any = FEW) -> Any:
    """Tell about {{input:found}}: {{output:text}}"""


@client_step
def look_up(word: str) -> str:
    """A step that this program runs."""
    return f"what {word} means"


def test_a_wait_for_a_step_of_the_client_is_one_for_a_tool(
    page: Page, url: str, client: Client
) -> None:
    """The call reads what the client's function returns, and the timeline says so."""
    with client.session() as session:
        told(look_up(word("weaving"))).get()
        page.goto(f"{url}/ui/#/s/{session.id}")
        call = page.locator("#timeline").get_by_role("button", name="told")
        expect(call).to_have_accessible_name(re.compile("waited .* for a tool"))
        expect(call.locator(".phase-tool")).to_have_count(1)
