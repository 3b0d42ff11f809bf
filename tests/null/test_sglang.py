"""The sglang engine. The server's answers are written as SGLang documents them, not recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.null.endpoints import Endpoint, answer, streams
from tests.null.test_kv_events import publisher
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig, EndpointError
from weftline_engine.remote.prefix_cache.gauge import Gauge
from weftline_engine.remote.sglang.config import SGLangConfig
from weftline_engine.remote.sglang.engine import SGLangEngine
from weftline_engine.remote.sglang.facts import GAUGE, SGLangFacts
from weftline_engine.remote.sglang.generate_requests import (
    AnswerReader,
    generate_body,
    sampling_params,
)

INFO = {
    "model_path": "/models/m",
    "context_length": None,
    "max_req_input_len": 4090,
    "max_total_num_tokens": 20_000,
    "page_size": 2,
    "disable_radix_cache": False,
    "enable_priority_scheduling": True,
    "schedule_low_priority_values_first": False,
    "incremental_streaming_output": False,
    "version": "0.5.9",
}
BUSY = (
    b'# TYPE sglang:token_usage gauge\nsglang:token_usage{model_name="m"} 0.5\n'
    b'sglang:num_queue_reqs{model_name="m"} 3.0\nsglang:num_running_reqs{model_name="m"} 9.0\n'
)
WORDS = ("The", " sky", " is", " blue", ".")


class WrittenSGLang:
    """Answers /generate with the words, and keeps what each salt has sent in its cache."""

    def __init__(self, *, salts: bool = True, increments: bool = False) -> None:
        self.salts = salts
        self.increments = increments
        self._cached: dict[str, list[int]] = {}

    async def __call__(self, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        ids = request["input_ids"]
        salt = request.get("extra_key", "") if self.salts else ""
        had, self._cached[salt] = self._cached.get(salt, []), ids
        cached = len(ids) - 1 if had[: len(ids) - 1] == ids[:-1] else 0
        meta = {"prompt_tokens": len(ids), "cached_tokens": cached, "finish_reason": None}
        if not request.get("stream"):
            done = meta | {"completion_tokens": 1, "finish_reason": {"type": "length", "length": 1}}
            whole = {"text": WORDS[0], "output_ids": [0], "meta_info": done}
            writer.write(answer(200, json.dumps(whole).encode()))
            return
        events = []
        for end in range(1, len(WORDS) + 1):
            start = end - 1 if self.increments else 0
            reason = {"type": "stop", "matched": 2} if end == len(WORDS) else None
            told = meta | {"completion_tokens": end, "finish_reason": reason}
            text, made = "".join(WORDS[start:end]), list(range(start, end))
            events.append({"text": text, "output_ids": made, "meta_info": told})
        lines = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in events]
        await streams(*lines, b"data: [DONE]\n\n", cut=True)(writer, request)


def generate(name: str = "op", **hints: Any) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=(5, 6, 7, 8, 9),
        sampling=api.SamplingParams(max_tokens=8, temperature=0.0),
        salt="tenant",
        hints=api.Hints(**hints),
    )


@asynccontextmanager
async def connected(
    path: Path, written: WrittenSGLang, **more: Any
) -> AsyncIterator[tuple[SGLangEngine, Endpoint, api.Description]]:
    endpoint = Endpoint(written)
    endpoint.pages["/server_info"] = json.dumps(INFO).encode()
    endpoint.metrics = BUSY
    async with endpoint.on(path / "s") as socket:
        connect = EndpointConfig(url="http://s", socket=socket)
        engine = SGLangEngine(SGLangConfig(model=path, connect=connect, **more))
        yield engine, endpoint, await engine.start()
        await engine.close()


async def ended(engine: SGLangEngine, *ops: api.Op) -> list[api.Event]:
    """Submit the ops in turn, and return all events up to the end of the last one."""
    found: list[api.Event] = []
    events = engine.events()
    for op in ops:
        engine.submit(op)
        while not any(
            isinstance(one, api.Finished | api.Failed) for one in found if one.op == op.id
        ):
            found += await anext(events)
    return found


def _ends(event: api.Event, op: api.Op) -> bool:
    return event.op == op.id and isinstance(event, api.Finished | api.Failed)


@pytest.mark.parametrize("increments", [False, True])
async def test_ids_go_out_and_come_back(tmp_path: Path, increments: bool) -> None:
    """The prompt is sent as ids, with the tenant's salt, the session and the place in the plan.
    The second call of the same prompt finds it in the cache. It ends what it streams."""
    async with connected(tmp_path, WrittenSGLang(increments=increments)) as (engine, server, _):
        engine._facts = replace(engine._facts, increments=increments)
        first = generate("first", application="session 1", turn=5.0)
        second = generate("second", application="session 1", turn=6.0)
        found = await ended(engine, first, second)
    parts = [one for one in found if isinstance(one, api.Part) and one.op == "first"]
    assert [(one.text, one.tokens) for one in parts] == [(w, (i,)) for i, w in enumerate(WORDS)]
    one, other = (event for event in found if isinstance(event, api.Finished))
    assert (one.usage.prompt_tokens, one.usage.cached_tokens, one.usage.output_tokens) == (5, 0, 5)
    assert other.usage.cached_tokens == 4 and one.reason is api.FinishReason.STOP
    body, later = server.requests[-2:]
    assert body["input_ids"] == [5, 6, 7, 8, 9] and body["rid"] == "first.0"
    assert (body["extra_key"], body["cache_salt"]) == ("tenant", "tenant")
    assert body["session_id"] == "session 1"
    assert body["priority"] == later["priority"] + 10  # a second earlier; the higher goes first
    assert server.headers[-1]["x-session-id"] == "session 1"


async def test_the_facts_decide_what_it_can(tmp_path: Path) -> None:
    """Sizes and switches come from /server_info. Only a trial shows that salts part the cache."""
    async with connected(tmp_path, WrittenSGLang()) as (_, _, told):
        assert (told.context_limit, told.kv_tokens) == (4090, 20_000)
        lacks = set(api.Capability) - set(told.capabilities)
        C = api.Capability
        assert lacks == {C.RETENTION, C.REPORTS, C.UPDATES}
    async with connected(tmp_path, WrittenSGLang(salts=False)) as (_, server, told):
        assert api.Capability.SALT not in told.capabilities
        assert [len(one["input_ids"]) for one in server.requests] == [8, 8]
    plain = SGLangFacts.of({"page_size": True, "max_total_num_tokens": "many"})
    assert plain == SGLangFacts()
    assert "priority" not in generate_body(generate(), (1,), plain)
    low = SGLangFacts(priorities=True, low_first=True)
    op = generate(turn=5.0)
    high = generate_body(op, (1,), replace(low, low_first=False))
    assert generate_body(op, (1,), low)["priority"] == -high["priority"]


async def test_another_server_is_refused(tmp_path: Path) -> None:
    """It has no facts to tell."""
    endpoint = Endpoint(WrittenSGLang())
    endpoint.pages = {"/server_info": b"[]", "/get_server_info": b"<html>"}
    async with endpoint.on(tmp_path / "s") as socket:
        connect = EndpointConfig(url="http://s", socket=socket)
        engine = SGLangEngine(SGLangConfig(model=tmp_path, connect=connect))
        with pytest.raises(api.EngineDied, match="it is no SGLang: it has no /get_server_info"):
            await engine.start()


async def test_an_open_prompt_and_a_fork(tmp_path: Path) -> None:
    """An open prompt is filled early. A fill leaves a context, and another op continues it."""
    async with connected(tmp_path, WrittenSGLang()) as (engine, server, _):
        fill = replace(generate("fill"), kind=api.Kind.FILL, sampling=None)
        fork = replace(generate("fork"), tokens=(1, 2), parent="fill")
        found = await ended(engine, fill, fork)
        reasons = [one.reason for one in found if isinstance(one, api.Finished)]
        assert reasons == [api.FinishReason.FILLED, api.FinishReason.STOP]
        assert server.requests[-1]["input_ids"] == [5, 6, 7, 8, 9, 1, 2]
        engine.submit(replace(generate("open"), tokens=tuple(range(200)), open=True))
        engine.feed("open", 200, (7,), True)
        await ended(engine, replace(generate("next"), parent="fork", tokens=(3,)))
        prompts = [one["input_ids"] for one in server.requests]
        assert [5, 6, 7, 8, 9, 1, 2, 0, 1, 2, 3, 4, 3] in prompts
        filled = [one for one in server.requests if len(one["input_ids"]) == 129]
        assert len(filled) == 1 and filled[0]["sampling_params"]["max_new_tokens"] == 1


async def test_its_events_report_contexts(tmp_path: Path) -> None:
    """SGLang's events are lists that end early, with blocks of a page and without salts."""
    async with (
        publisher(tmp_path) as sglang,
        connected(tmp_path, WrittenSGLang(), kv_events=sglang.addresses) as (engine, _, told),
    ):
        assert api.Capability.REPORTS in told.capabilities
        await sglang.listened()
        stored = ["BlockStored", [11, 12], None, [5, 6, 7, 8], 2, None]
        await sglang.send(b"", bytes(8), msgspec.msgpack.encode([1.0, [stored]]))
        found = await ended(engine, generate())
        async for events in engine.events():
            found += events
            moved = [one for one in found if isinstance(one, api.ContextMoved) and one.tokens]
            if moved:
                break
    assert (moved[-1].context, moved[-1].residency) == ("op", api.Residency.RESIDENT)
    assert moved[-1].tokens == 4


def test_parameters_have_sglangs_names() -> None:
    """Those that are off are left out; its own default of top_k is the model's."""
    plain = api.SamplingParams(max_tokens=9, temperature=0.5)
    assert sampling_params(plain) == {
        "max_new_tokens": 9,
        "temperature": 0.5,
        "top_p": plain.top_p,
        "top_k": -1,
    }
    full = replace(plain, top_k=4, min_tokens=2, seed=0, stop=("x",), repetition_penalty=1.2)
    more = sampling_params(replace(full, logit_bias=((7, -1.5),)))
    assert (more["top_k"], more["min_new_tokens"], more["sampling_seed"]) == (4, 2, 0)
    assert (more["stop"], more["repetition_penalty"]) == (["x"], 1.2)
    assert more["logit_bias"] == {"7": -1.5}


@pytest.mark.parametrize(
    ("constraint", "field", "value"),
    [
        ({"json_schema": {"type": "object"}}, "json_schema", '{"type": "object"}'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"choice": ["yes", "no"]}, "ebnf", 'root ::= "yes" | "no"'),
        (
            {"structural_tag": {"type": "any_text"}},
            "structural_tag",
            '{"type": "structural_tag", "format": {"type": "any_text"}}',
        ),
    ],
)
def test_constraints_are_parameters(constraint: dict[str, Any], field: str, value: str) -> None:
    sampling = api.SamplingParams(max_tokens=9, constraint=json.dumps(constraint))
    assert sampling_params(sampling)[field] == value


def event(text: str, ids: list[int], reason: Any = None, **meta: Any) -> dict[str, Any]:
    return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": reason, **meta}}


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    """SGLang cuts a stop string off at the end, when its beginning was streamed already."""
    reader = AnswerReader(api.SamplingParams(max_tokens=9, stop=("STOP", "TO")), increments=False)
    told = [
        reader.read(event("a S", [1])).text,
        reader.read(event("a ST", [1, 2])).text,
        reader.read(event("a STar S", [1, 2, 3])).text,
        reader.read(event("a STar ", [1, 2, 3, 4], {"type": "stop", "matched": "STOP"})).text,
    ]
    assert told == ["a ", "", "STar ", ""]


def test_probabilities_are_those_of_new_tokens() -> None:
    """By default each event has those of the whole answer, too."""
    reader = AnswerReader(api.SamplingParams(max_tokens=9, logprobs=1), increments=False)
    one, two = [-0.1, 4, None], [-0.2, 5, None]
    first = event("a", [4], output_token_logprobs=[one], output_top_logprobs=[[one, two]])
    second = event(
        "ab", [4, 5], output_token_logprobs=[one, two], output_top_logprobs=[[one], [two]]
    )
    reader.read(first)
    piece = reader.read(second)
    assert (piece.logprobs, piece.top_tokens, piece.top_logprobs) == ((-0.2,), (5,), (-0.2,))


def test_an_aborted_answer_is_an_error() -> None:
    """The queue was full, or the answer has no ids."""
    reader = AnswerReader(api.SamplingParams(max_tokens=9), increments=False)
    with pytest.raises(EndpointError, match="gave up on the answer \\(queue full\\)") as error:
        reader.read(event("", [], {"type": "abort", "message": "queue full"}))
    assert error.value.retryable
    with pytest.raises(EndpointError, match="use a newer SGLang"):
        reader.read({"text": "a", "meta_info": {}})


def test_its_metrics_say_how_full_it_is() -> None:
    assert GAUGE.read(BUSY) == Gauge(0.5, 3, 9)
    assert GAUGE.read(b"") is None
