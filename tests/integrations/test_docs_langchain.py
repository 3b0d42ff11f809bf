"""The pages of docs/langchain: their programs run, and the requests are those that the
page shows.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import StartServer
from tests.integrations.programs import run_here
from tests.integrations.recording import Recording, recorded

PAGES = Path(__file__).parents[2] / "docs" / "langchain"
DRAW = runpy.run_path(str(PAGES / "draw.py"))
REPLIES: dict[str, str] = DRAW["REPLIES"]
ANSWER = REPLIES["Improve"]


Run = Callable[[str, Recording], str]


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    return start_script(list(REPLIES.items()))


def block(tier: str, language: str) -> str:
    """Return the page's block that shows the requests."""
    found = re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{tier}.md").read_text(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a page's program in this process, and returns what it prints."""

    def run(tier: str, proxy: Recording) -> str:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        run_here(DRAW["program"](tier), tmp_path)
        return capsys.readouterr().out

    return run


def run_alone(tier: str, proxy: Recording) -> str:
    """What the page's program prints as a process of its own, which takes seconds to import."""
    done = subprocess.run(
        [sys.executable, "-c", DRAW["program"](tier)],
        env=os.environ | {"WEFTLINE_BASE_URL": proxy.url},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(bodies: list[Any]) -> str:
    """Return the calls with their values' names, and the edges between them, from the requests."""
    calls = {body["weftline"]["name"]: body["weftline"]["messages"] for body in bodies}
    made = dict(zip(reversed(REPLIES.values()), calls, strict=True))
    lines, edges = [], []
    for call, messages in calls.items():
        pieces = [piece for message in messages for piece in message]
        named = ("{{input:" + p["name"] + "}}" if "name" in p else p["text"] for p in pieces)
        lines.append(f"{call}  user: " + "".join(named).replace("\n", "\\n"))
        edges += [f"{made[p['text']]} → {call}" for p in pieces if "from_var" in p]
    return "\n".join([*lines, *sorted(edges, key=lambda edge: list(calls).index(edge.split()[0]))])


def test_the_class_swapped_sends_messages_and_provenance(url: str, run: Run) -> None:
    """Three requests each have their rendered text, and names and edges beside it."""
    with recorded(url) as proxy:
        assert run("swapped", proxy) == ANSWER + "\n"
        bodies = proxy.bodies("/v1/chat/completions")
    lines = [json.loads(line) for line in block("swapped", "json").splitlines()]
    assert [{"messages": body["messages"]} for body in bodies] == lines
    assert told(bodies) == block("swapped", "text").rstrip("\n")


@pytest.mark.parametrize("alone", [False, True])
def test_an_accelerated_chain_sends_one_graph(alone: bool, url: str, run: Run) -> None:
    """There is one request, and the explanation equals that on the page.

    The adapter's threads do not keep a program of its own from ending.
    """
    ran = run_alone if alone else run
    with recorded(url) as proxy:
        printed = ran("accelerated", proxy)
        assert printed == block("accelerated", "text") + ANSWER + "\n"
        assert len(proxy.bodies("/v1/submit")) == 1
        assert proxy.bodies("/v1/chat/completions") == []


def test_pictures_can_be_drawn_again(tmp_path: Path) -> None:
    """Each picture has three bars."""
    DRAW["main"](["--step-s", "0.001", "--rtt-s", "0", "--output", str(tmp_path)])
    for tier in ("swapped", "accelerated"):
        for picture in (tmp_path / f"{tier}.svg", PAGES / f"{tier}.svg"):
            assert picture.read_text().count("out</text>") == 3
