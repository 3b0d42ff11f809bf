"""The whole server on vLLM: graphs, early fills, tenants, metrics, and a vLLM that is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest
import pytest_asyncio

from tests.contract.target import Target
from tests.null.asgi import Server, call, served
from tests.tool_turns import MOST_COMPUTED, computed_behind_a_call
from tests.vllm.conftest import BLOCK
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.vllm.cache_size import gauge_names
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine

# The first test waits for vLLM, which loads for a minute or more.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


@pytest_asyncio.fixture(loop_scope="session")
async def server(vllm: Target, vllm_socket: str, vllm_config: VLLMConfig) -> AsyncIterator[Server]:
    """A server whose engine is connected to the running vLLM."""
    endpoint = EndpointConfig(url="http://vllm/v1", socket=vllm_socket)
    config = replace(vllm_config, engine_python=None, connect=endpoint)
    async with served("vllm", lambda: VLLMEngine(config)) as server:
        yield server


def greedy(variable: str, tokens: int) -> dict[str, object]:
    sampling = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"in_out": "out", "semantic_var_id": variable, "sampling": sampling}


async def test_a_graph_runs_in_one_request(server: Server) -> None:
    """The long known prefix of a consumer is filled while its input is generated."""
    rules = " ".join(f"Rule {i}: be brief and do not repeat rule {i - 1}." for i in range(40))
    calls = [
        call("draft", "Count: one two three {{output:d}}", d=greedy("draft", 48)),
        call("judge", rules + " Text: {{input:d}} {{output:j}}", d="draft", j=greedy("judge", 4)),
    ]
    body = {"calls": calls, "get": ["draft", "judge"], "graph": True}
    answer = (await server.http.post("/v1/submit", json=body)).json()
    assert len(answer["values"]["draft"]) > 48 and answer["values"]["judge"]
    by_name = {one["name"]: one for one in answer["graph"]["calls"]}
    assert by_name["judge"]["prompt_tokens"] > 500
    assert {one["engine"] for one in by_name.values()} == {"vllm"}
    (engine,) = answer["graph"]["engines"]
    assert any("keep and free are advice" in one for one in engine["lacks"])


async def test_a_turn_computes_what_is_new(server: Server) -> None:
    """What was computed while the client ran the tool, up to its last block, is in vLLM's cache."""
    assert await computed_behind_a_call(server, "vllm") <= MOST_COMPUTED + BLOCK


def tool(name: str) -> dict[str, object]:
    """A strict tool whose one argument has one possible value."""
    text = {"type": "string", "enum": [f"for {name}"]}
    schema = {
        "type": "object",
        "properties": {"text": text},
        "required": ["text"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}


NAMED = {"type": "function", "function": {"name": "look"}}
YES = {"type": "object", "properties": {"ok": {"const": True}}, "required": ["ok"]}


@pytest.mark.parametrize(
    ("fields", "once"),
    [
        ({"tool_choice": NAMED}, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, True),
        ({"tool_choice": "required"}, False),
    ],
    ids=["named", "one of two", "several of two"],
)
async def test_vllm_is_held_to_the_tools(
    server: Server, fields: dict[str, object], once: bool
) -> None:
    """A forced call has the form of its tool, and its arguments match the tool's schema."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Look for rivers."}],
        "tools": [tool("look"), tool("find")],
        "temperature": 0,
        "max_tokens": 120,
        **fields,
    }
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    called = answer.json()["choices"][0]["message"]["tool_calls"]
    assert len(called) == 1 if once else called
    for one in called:
        name = one["function"]["name"]
        assert name in ("look", "find")
        assert json.loads(one["function"]["arguments"]) == {"text": f"for {name}"}
    assert called[0]["function"]["name"] == "look" or fields["tool_choice"] != NAMED


async def test_vllm_calls_a_strict_tool_or_gives_the_wanted_json(server: Server) -> None:
    """With optional tools the answer is a call in its form, or a text that matches its schema."""
    schema = {"name": "yes", "schema": YES, "strict": True}
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Is this a river? Answer in JSON."}],
        "tools": [tool("look")],
        "temperature": 0,
        "max_tokens": 120,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    if called := message.get("tool_calls"):
        assert json.loads(called[0]["function"]["arguments"]) == {"text": "for look"}
    else:
        assert json.loads(message["content"]) == {"ok": True}


async def test_an_open_prompt_is_filled_early(vllm: Target) -> None:
    """When the prompt is complete, all whole blocks of its early fills are in vLLM's cache."""
    op = vllm.op(vllm.questions[3], system="A prompt of its own that nobody has sent. " * 40)
    tokens = op.tokens or ()
    assert len(tokens) > 384
    engine = vllm.engine
    assert isinstance(engine, VLLMEngine)
    for known, warmed in ((128, 0), (129, 128), (256, 128), (300, 256)):
        if known == 128:
            engine.submit(replace(op, tokens=tokens[:known], open=True))
        else:
            found = engine._open.get(op.id)
            assert found is not None
            engine.feed(op.id, len(found.tokens), tokens[len(found.tokens) : known], False)
        found = engine._open.get(op.id)
        assert found is not None
        assert found.warmed == warmed
        if found.warming is not None:
            await found.warming
    engine.feed(op.id, 300, tokens[300:], True)
    heard = await vllm.end(op.id)
    assert heard.finished is not None and heard.finished.usage.cached_tokens == 256


async def test_its_metrics_keep_their_names(server: Server) -> None:
    """The server's metrics come first, then vLLM's, unchanged."""
    text = (await server.http.get("/metrics")).text
    assert "weftline_queue_length 0.0" in text
    for name in ("vllm:num_requests_running", "vllm:prefix_cache_hits_total"):
        assert f"\n{name}{{" in text


async def test_text_that_nobody_reads_comes_in_parts(vllm: Target) -> None:
    """The first token at once, and then parts of 16 tokens. The text is the same."""
    op = vllm.op(vllm.questions[2], max_tokens=40, ignore_eos=True)
    (read,) = await vllm.run(op)
    hidden = replace(op, id="unread", context="unread", hints=replace(op.hints, unread=True))
    (unread,) = await vllm.run(hidden)
    assert [len(part.tokens) for part in unread.parts if part.tokens] == [1, 16, 16, 7]
    assert unread.text == read.text and len(read.parts) > 30


async def test_it_tells_how_full_its_cache_is(vllm: Target) -> None:
    """Its metrics have the names and labels that the gauge reads."""
    engine = vllm.engine
    assert isinstance(engine, VLLMEngine)
    found = gauge_names().read(await engine.metrics())
    assert found is not None and found.waiting == 0 and found.filled < 0.1


async def test_log_probabilities_and_a_choice(vllm: Target) -> None:
    """Three alternatives per token, the best first. A constrained answer is one of its choices."""
    op = vllm.op(vllm.questions[0], logprobs=3)
    (heard,) = await vllm.run(op)
    for part in heard.parts:
        assert len(part.logprobs) == len(part.tokens)
        assert len(part.top_tokens) == len(part.top_logprobs) == 3 * len(part.tokens)
        # Greedy: the token that was taken is the likeliest.
        assert part.top_tokens[::3] == part.tokens
    choice = '{"choice": ["weft", "warp"]}'
    (heard,) = await vllm.run(vllm.op(vllm.questions[0], constraint=choice))
    assert heard.text in ("weft", "warp")


async def test_the_plan_decides_there_too(vllm: Target) -> None:
    """With more calls than vLLM runs at once, one whose turn is earlier overtakes earlier calls."""
    question = vllm.questions[1]
    hints = [api.Hints(turn=100.0)] * 24 + [api.Hints(turn=1.0)]
    ops = [replace(vllm.op(question, max_tokens=24, ignore_eos=True), hints=one) for one in hints]
    heard = await vllm.run(*ops)
    ends = [one.finished.time for one in heard if one.finished is not None]
    assert len(ends) == 25 and sum(end > ends[-1] for end in ends) >= 8


async def test_a_killed_vllm_is_started_again(vllm: Target) -> None:
    """The engine dies with vLLM and gives the reason, and no process is left."""
    engine = vllm.engine
    assert isinstance(engine, VLLMEngine)
    vllm.engine.submit(vllm.op(vllm.questions[0], name="last", max_tokens=500, ignore_eos=True))
    await vllm.until("last", lambda heard: len(heard.parts) > 2)
    assert engine._child is not None
    guard = psutil.Process(engine._child.pid)
    (server,) = guard.children()
    family = server.children(recursive=True)
    server.kill()
    with pytest.raises(api.EngineDied, match="vLLM ended by itself"):
        await asyncio.wait_for(asyncio.shield(vllm.listening), 60)
    psutil.wait_procs(family, timeout=30)
    assert not [one for one in family if one.is_running()]


async def test_it_tells_the_size_of_its_cache(vllm: Target) -> None:
    """The size is 1 GiB in whole blocks of 32 tokens, 46,080 bytes per token."""
    assert vllm.description.kv_tokens == (1 << 30) // 46_080 // 32 * 32
