"""The page's view of the engines: batch, KV pool and rates, while they run."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.page.programs import ask
from weftline import Client
from weftline.local import local_server

WORDS = ("--engine", "null", "--null-mode", "words", "--kv-tokens", "8192", "--null-step-s", "0.02")


def test_an_engine_shows_what_it_runs(page: Page) -> None:
    """A running call is in the batch and in the KV pool, and its tokens have a rate."""
    with local_server(*WORDS) as url, Client(url) as client:
        page.goto(f"{url}/ui/")
        page.get_by_role("link", name="Engines").click()
        card = page.get_by_role("region", name="engine null")
        expect(card.get_by_text("ready")).to_be_visible()
        expect(card.get_by_text("0 running of at most")).to_be_visible()
        pool = card.get_by_role("img", name="KV pool")
        nothing = "KV pool of null: running 0, kept 0, evictable 0, free 8,192"
        expect(pool).to_have_accessible_name(nothing)
        with client.session() as session:
            session.submit([ask("story", "Tell a story.", "x", tokens=3000)])
            expect(card.get_by_text("1 running of at most")).to_be_visible()
            expect(pool).to_have_accessible_name(re.compile("running 3,"))
            generated = card.get_by_role("row", name="generated")
            expect(generated).to_contain_text(re.compile(r"[1-9]\d* /s"))
        expect(card.get_by_text("0 running of at most")).to_be_visible()


def test_a_tenant_of_several_sees_no_load_of_others(page: Page, tmp_path: Path) -> None:
    """Its own calls are counted; memory and rates, which all tenants make, are not shown."""
    config = tmp_path / "weftline.toml"
    config.write_text('[keys]\na = "key-a"\nb = "key-b"\n')
    with local_server("--engine", "null", "--config", str(config)) as url:
        page.goto(f"{url}/ui/#/engines")
        page.get_by_label("API key").fill("key-b")
        page.get_by_role("button", name="Open").click()
        card = page.get_by_role("region", name="engine null")
        expect(card.get_by_text("your calls in its batch")).to_be_visible()
        expect(card.get_by_text("its memory and its rates are not shown")).to_be_visible()
        expect(card.get_by_role("img")).to_have_count(0)
