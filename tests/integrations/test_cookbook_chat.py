"""The chat in a browser: its page, the stream of its answers, and what a second question knows."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest

from cookbook.rag import chat_in_a_browser
from tests.integrations.conftest import RETRIEVES, StartServer
from tests.integrations.recording import Recording, recorded

RULES = [
    ("understood alone", "Which yarn does the shuttle carry?"),
    ("And the warp?", "The loom holds it."),
    ("", "It is the weft."),
]


@pytest.fixture
def proxy(start_script: StartServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    with recorded(start_script(RULES, *RETRIEVES)) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        yield proxy


async def test_two_questions(proxy: Recording) -> None:
    """Each is one request, and its answer comes in pieces. The second prompt has the first
    question with its answer, and that of another chat has not."""
    app = chat_in_a_browser.app()
    proxy.requests.clear()  # those that added the texts
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://chat"
    ) as browser:
        assert "EventSource" in (await browser.get("/")).text
        said = []
        for chat, question in (("a", "What is it?"), ("a", "And the warp?"), ("b", "What is it?")):
            answer = await browser.get("/ask", params={"chat": chat, "question": question})
            assert answer.headers["content-type"].startswith("text/event-stream")
            *pieces, end = answer.text.strip().split("\n\n")
            assert end == "event: end\ndata: {}"
            texts = [json.loads(piece.removeprefix("data: ")) for piece in pieces]
            assert len(texts) > 1
            said.append("".join(texts).strip())
    assert said == ["It is the weft.", "The loom holds it.", "It is the weft."]
    graphs = [json.dumps(body) for body in proxy.bodies("/v1/submit")]
    assert (len(graphs), proxy.bodies("/v1/chat/completions")) == (3, [])
    assert ["It is the weft." in graph for graph in graphs] == [False, True, False]
