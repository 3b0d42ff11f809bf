"""llama-server behind the engine and the whole server: copies of slots, constraints, a death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import pytest_asyncio

from tests.contract.target import Heard, Target
from tests.llamacpp.conftest import SLOTS
from tests.null.asgi import call
from weftline.local import local_server
from weftline_engine import api
from weftline_engine.remote.llamacpp.config import LlamaServerConfig
from weftline_engine.remote.llamacpp.engine import LlamaEngine

pytestmark = pytest.mark.asyncio(loop_scope="session")

SYSTEM = "A prompt of its own, which no other test has sent. " * 30


def cached(heard: Heard) -> int:
    assert heard.finished is not None, heard.failed
    return heard.finished.usage.cached_tokens


async def test_what_calls_share_is_computed_once(llama: Target) -> None:
    """One call for each slot: the beginning that all share is found by all but the one for which it
    was computed."""
    questions = [llama.questions[which % 4] for which in range(SLOTS)]
    ops = [llama.op(one, system=SYSTEM, max_tokens=2) for one in questions]
    tokens = [op.tokens or () for op in ops]
    shared = next(at for at, ids in enumerate(zip(*tokens, strict=False)) if len({*ids}) > 1)
    assert shared > 300
    heard = await llama.run(*ops)
    assert sorted(cached(one) >= shared for one in heard) == [False] + [True] * (SLOTS - 1)


async def test_a_paused_context_comes_back(llama: Target) -> None:
    """The server swaps a context out. Others then use every slot, and the call that goes on finds
    all of it."""
    op = llama.op(llama.questions[0], system="It pauses. " + SYSTEM, name="paused")
    llama.engine.submit(op)
    heard = await llama.end("paused")
    left = [event for event in heard.events if isinstance(event, api.ContextMoved)][-1]
    llama.engine.retain(op.context, api.Retention.SWAP)
    others = [
        llama.op(llama.questions[0], system=f"Slot {slot}. " * 8, max_tokens=2)
        for slot in range(SLOTS)
    ]
    await llama.run(*others)
    output = tuple(token for part in heard.parts for token in part.tokens)
    more = replace(llama.op(llama.questions[1], max_tokens=2), tokens=(1, 2), parent=op.context)
    (went_on,) = await llama.run(more)
    assert cached(went_on) == left.tokens == len(op.tokens or ()) + len(output) - 1
    llama.engine.free(op.context)


async def test_characters_of_several_tokens(llama: Target) -> None:
    """Every token is told, also those that llama-server leaves out of its stream."""
    grammar = json.dumps({"grammar": 'root ::= "🦙🧵 你好"'})
    (heard,) = await llama.run(llama.op(llama.questions[0], constraint=grammar, max_tokens=40))
    assert heard.text == "🦙🧵 你好"
    assert heard.finished is not None
    tokens = [token for part in heard.parts for token in part.tokens]
    assert len(tokens) == heard.finished.usage.output_tokens > 8


async def test_constraints_are_followed(llama: Target) -> None:
    """A choice and a JSON schema."""
    schema: dict[str, Any] = {"type": "object", "required": ["ok"], "additionalProperties": False}
    schema["properties"] = {"ok": {"const": True}}
    texts = []
    for constraint in ({"choice": ["weft", "warp"]}, {"json_schema": schema}):
        op = llama.op(llama.questions[0], constraint=json.dumps(constraint), max_tokens=60)
        texts.append((await llama.run(op))[0].text)
    assert texts[0] in ("weft", "warp")
    assert json.loads(texts[1])["ok"] is True


async def test_log_probabilities(llama: Target) -> None:
    """Three alternatives per token, the best first. Greedy: the first is the one that was taken."""
    (heard,) = await llama.run(llama.op(llama.questions[0], logprobs=3))
    assert heard.text == llama.answer(llama.questions[0])
    for part in heard.parts:
        assert len(part.logprobs) == len(part.tokens) == 1
        assert part.top_tokens[0] == part.tokens[0] and len(part.top_logprobs) == 3


async def test_its_metrics_keep_their_names(llama: Target) -> None:
    """They are llama-server's own."""
    engine = llama.engine
    assert isinstance(engine, LlamaEngine)
    assert b"llamacpp:prompt_tokens_total" in await engine.metrics()


@pytest.fixture(scope="module")
def url(llama_config: LlamaServerConfig, half_gguf: Path) -> Iterator[str]:
    """`weftline serve FILE.gguf --engine llamacpp`."""
    assert llama_config.llama_server is not None
    words = ("--llama-server", llama_config.llama_server, "--llama-arguments=--threads 1")
    few = ("--max-running", "2", "--context-limit", "1024")
    with local_server(str(half_gguf), "--engine", "llamacpp", *words, *few) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def http(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=url, timeout=200) as client:
        yield client


async def test_a_gguf_file_is_served(http: httpx2.AsyncClient, llama: Target) -> None:
    """A chat gets the model's answer; the model has its file's name."""
    question = llama.questions[0]
    body = {
        "model": "SmolLM2-half",
        "messages": [
            {"role": "system", "content": "You answer briefly."},
            {"role": "user", "content": question},
        ],
        "max_tokens": 8,
        "temperature": 0,
    }
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]
    again = (await http.post("/v1/chat/completions", json=body)).json()
    assert again["choices"] == answer.json()["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 10


async def test_a_graph_runs_in_one_request(http: httpx2.AsyncClient) -> None:
    """The second call continues the text of the first."""
    sampling = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    out = {"in_out": "out", "sampling": sampling}
    calls = [
        call("a", "Count: one two three {{output:d}}", d=out | {"semantic_var_id": "draft"}),
        call(
            "b",
            "Continue: {{input:d}} {{output:j}}",
            d="draft",
            j=out | {"semantic_var_id": "judge"},
        ),
    ]
    answer = await http.post("/v1/submit", json={"calls": calls, "get": ["draft", "judge"]})
    assert answer.status_code == 200, answer.text
    assert all(answer.json()["values"].values())


async def test_a_regex_is_refused(http: httpx2.AsyncClient) -> None:
    """llama.cpp has none: a 400 names the field."""
    body = {
        "model": "SmolLM2-half",
        "messages": [{"role": "user", "content": "a"}],
        "structured_outputs": {"regex": "a+"},
    }
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "regex" in answer.json()["error"]["message"]


async def test_a_killed_server_ends_the_engine(llama_config: LlamaServerConfig) -> None:
    """The running call fails with the reason, and no process and no file is left."""
    target = Target(LlamaEngine(llama_config), {"What?": ["x"]})
    await target.start()
    engine = target.engine
    assert isinstance(engine, LlamaEngine) and engine.child is not None
    target.engine.submit(target.op("What?", name="last", max_tokens=500, ignore_eos=True))
    await target.until("last", lambda heard: len(heard.parts) > 2)
    guard = psutil.Process(engine.child.pid)
    folder = Path(engine.child.endpoint.socket or "").parent
    (server,) = guard.children()
    server.kill()
    with pytest.raises(api.EngineDied, match="llama-server ended by itself"):
        await asyncio.wait_for(asyncio.shield(target.listening), 60)
    await engine.close()
    assert not server.is_running() and not folder.exists()
