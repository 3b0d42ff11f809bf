"""The applications of `bench rag_graph`: all systems ask the model the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bench.micro import _rag_apps as apps
from bench.micro import _rag_llamaindex, _rag_ours, _rag_plain
from bench.micro._rag_apps import App
from bench.micro.rag_graph import Texts
from tests.integrations.conftest import served
from tests.integrations.recording import recorded
from weftline.contract.protocol import to_wire

TABLES = (
    '[[embedder]]\nname = "minilm"\nmodel = "null"\n[[store]]\nname = "docs"\nstore = "memory"\n'
)
CHAT = "/v1/chat/completions"


def listed(count: int) -> str:
    """A list of questions, as the model would write it under the constraint."""
    return json.dumps([letter * apps.QUERY_CHARS for letter in "ABCD"[:count]])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real model's place is taken by a script, and MiniLM's by an embedder without weights."""
    folder: Path = tmp_path_factory.mktemp("rag")
    config, script = folder / "weftline.toml", folder / "script.json"
    config.write_text(TABLES)
    rules = {
        apps.PLAN[:40]: listed(apps.PARTS),
        apps.EXPAND[:40]: listed(3),
        "Sub question: ": "the whole",
        "Query: AAA": "one",
        "Query: BBB": "two",
        "Query: CCC": "three",
        "Query: DDD": "four",
        "existing answer": "a better one",
        "Question 0": "an answer",
    }
    script.write_text(json.dumps([{"when": k, "reply": v} for k, v in rules.items()]))
    options = ("--config", str(config), "--null-mode", "script", "--null-script", str(script))
    with served(*options) as url:
        yield url


@pytest.mark.parametrize("app", [App.ADVANCED, App.SUB_QUESTIONS])
async def test_all_systems_ask_the_same(url: str, app: App) -> None:
    """LlamaIndex sends the messages of the program by hand; the graph's prompts are as long."""
    # Chunks of one length: they tie in an embedder that counts words, and each system breaks ties
    # in its own way.
    chunks = tuple(" ".join([f"w{number}"] * 40) for number in range(apps.CHUNKS))
    task = replace(Texts().task(app, 0), chunks=chunks)
    told: list[int] = []

    async def note(response: httpx2.Response) -> None:
        if response.url.path == CHAT:
            await response.aread()
            told.append(response.json()["usage"]["prompt_tokens"])

    def asked(bodies: list[Any]) -> list[str]:
        said = [message["content"] for body in bodies for message in body["messages"]]
        return sorted(re.sub(r"w\d", "w", text) for text in said)

    with recorded(url) as proxy:
        hooks: Any = {"response": [note]}
        async with httpx2.AsyncClient(base_url=proxy.url, timeout=60, event_hooks=hooks) as http:
            by_hand = await _rag_plain.run(http, task)
            prompts = asked(proxy.bodies(CHAT))
            proxy.requests.clear()
            assert _rag_llamaindex.run(proxy.url, task).strip() == by_hand
            assert asked(proxy.bodies(CHAT)) == prompts
            graph = replace(_rag_ours.submit(task), close=False)
            answer = (await http.post("/v1/submit", json=to_wire(graph))).json()
            assert answer["values"]["final"] == by_hand
            shown = (await http.get(f"/v1/session/{answer['session_id']}/graph")).json()
            assert sorted(one["prompt_tokens"] for one in shown["calls"]) == sorted(told)
