"""What a vLLM without our scheduler is told of each call, and what its metrics change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.null.endpoints import Endpoint, answer, streams
from tests.null.test_openai_faults import ending
from weftline_engine import api
from weftline_engine.openai.endpoint import EndpointConfig
from weftline_engine.vllm.child import Child
from weftline_engine.vllm.config import SchedulerChoice, VLLMConfig
from weftline_engine.vllm.engine import UNREAD_TOKENS, VLLMEngine
from weftline_engine.vllm.gauge import Gauge, GaugeReader, gauge
from weftline_engine.vllm.open_prompts import WARM_TOKENS

ANSWER: dict[str, Any] = {"choices": [{"text": "a", "token_ids": [1], "finish_reason": "stop"}]}
EVENT = b"data: " + json.dumps(ANSWER).encode() + b"\n\n"
BUSY = (
    b'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine="0"} %d\n'
    b'vllm:num_requests_running{engine="0"} 3\n'
    b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7\n'
    b'vllm:kv_cache_usage_perc{engine="0"} %.2f\n'
    b'vllm:cache_config_info{kv_cache_size_tokens="1000"} 1.0\n'
)


async def answers(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    """As vLLM does: a stream where one is asked for, and one JSON object elsewhere."""
    if request.get("stream"):
        await streams(EVENT, b"data: [DONE]\n\n", cut=True)(writer, request)
    else:
        writer.write(answer(200, json.dumps(ANSWER | {"usage": {"prompt_tokens": 1}}).encode()))


def generate(name: str = "op", *, open: bool = False, **hints: Any) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tuple(range(2 * WARM_TOKENS + 1)),
        sampling=api.SamplingParams(max_tokens=3, temperature=0.0),
        open=open,
        hints=api.Hints(**hints),
    )


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftline_engine.vllm.engine.EVERY_S", 0.0)


@asynccontextmanager
async def started(path: Path, metrics: bytes) -> AsyncIterator[tuple[VLLMEngine, Endpoint]]:
    """A vllm engine that is connected to a scripted endpoint."""
    endpoint = Endpoint(answers)
    endpoint.metrics = metrics
    async with endpoint.on(path / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        engine = VLLMEngine(VLLMConfig(model=path, connect=connect))
        await engine.start()
        endpoint.requests.clear()
        endpoint.headers.clear()
        yield engine, endpoint
        await engine.close()


async def test_the_session_is_named(tmp_path: Path) -> None:
    """A router between the server and several vLLMs keeps a session on one of them."""
    async with started(tmp_path, BUSY % (0, 0.0)) as (engine, endpoint):
        await ending(engine, generate(application="s-1"))
        assert endpoint.headers[-1]["x-session-id"] == "s-1"


@pytest.mark.parametrize(
    ("unread", "logprobs", "said"),
    [
        (True, None, UNREAD_TOKENS),
        (False, None, None),
        (True, 0, None),  # each token's probability comes with its own event
    ],
)
async def test_text_that_nobody_reads_comes_in_long_parts(
    tmp_path: Path, unread: bool, logprobs: int | None, said: int | None
) -> None:
    """One event for 16 tokens; an event for each where somebody may read them."""
    op = generate(unread=unread)
    assert op.sampling is not None
    op = replace(op, sampling=replace(op.sampling, logprobs=logprobs))
    async with started(tmp_path, BUSY % (0, 0.0)) as (engine, endpoint):
        engine.submit(op)
        async for events in engine.events():
            if any(isinstance(one, api.Finished | api.Failed) for one in events):
                break
        assert endpoint.requests[-1].get("stream_interval") == said


async def test_how_full_the_cache_is_counts_what_others_hold(tmp_path: Path) -> None:
    """Of 1,000 tokens 90 % are held, and our call holds 260 of them at most."""
    async with started(tmp_path, BUSY % (0, 0.9)) as (engine, _):
        engine.submit(generate(open=True))
        async for events in engine.events():
            found = [one.tokens for one in events if isinstance(one, api.Occupied)]
            if found:
                break
        assert found == [900 - 260]


@pytest.mark.parametrize(("waiting", "filled", "warmed"), [(0, 0.5, 1), (0, 0.9, 0), (2, 0.1, 0)])
async def test_a_prompt_is_filled_early_where_that_pays(
    tmp_path: Path, waiting: int, filled: float, warmed: int
) -> None:
    """Not before a request that waits, and not into a cache that is full."""
    async with started(tmp_path, BUSY % (waiting, filled)) as (engine, endpoint):
        engine.submit(replace(generate("busy", open=True), tokens=(1,)))
        async for events in engine.events():  # the gauge was read
            if any(isinstance(one, api.Occupied) for one in events):
                break
        engine.submit(generate("early", open=True))
        engine.submit(generate("after"))
        async for events in engine.events():
            if any(isinstance(one, api.Finished) and one.op == "after" for one in events):
                break
        fills = [one for one in endpoint.requests if one["max_tokens"] == 1]
        assert len(fills) == warmed


async def test_one_request_fills_what_open_prompts_share(tmp_path: Path) -> None:
    """Ten calls of a program begin with its task, and each later asks for a file of its own."""
    async with started(tmp_path, BUSY % (0, 0.1)) as (engine, endpoint):
        for i in range(10):
            engine.submit(generate(f"review {i}", open=True))
        for i in range(10):
            engine.feed(f"review {i}", 2 * WARM_TOKENS + 1, (i,), last=True)
        left = 10
        async for events in engine.events():
            left -= sum(isinstance(one, api.Finished) for one in events)
            if not left:
                break
        fills = [one for one in endpoint.requests if one["max_tokens"] == 1]
        assert [len(one["prompt"]) for one in fills] == [2 * WARM_TOKENS + 1]


@pytest.mark.parametrize(
    ("on_cpu", "given", "blocks"),
    [
        (True, (), ["32"]),
        (True, ("--block-size", "64"), ["32", "64"]),  # the last one counts
        (False, (), []),
    ],
)
def test_a_vllm_for_cpus_has_small_blocks(
    tmp_path: Path, on_cpu: bool, given: tuple[str, ...], blocks: list[str]
) -> None:
    """What a prompt shares with another is computed anew from its last whole block."""
    config = VLLMConfig(model=tmp_path, python="python", arguments=given)
    words = config.command(tmp_path, ours=True, on_cpu=on_cpu)
    assert [words[at + 1] for at, one in enumerate(words) if one == "--block-size"] == blocks


@pytest.mark.parametrize(
    ("choice", "version", "ours"),
    [
        (SchedulerChoice.AUTO, "0.32.0", True),
        (SchedulerChoice.AUTO, "0.31.0", False),
        (SchedulerChoice.VLLM, "0.32.0", False),
        (SchedulerChoice.WEFTLINE, "0.32.0", True),
    ],
)
def test_our_scheduler_runs_where_it_is_known_to_work(
    tmp_path: Path, choice: SchedulerChoice, version: str, ours: bool
) -> None:
    """Another version of vLLM runs its own scheduler, unless ours is demanded: that is refused."""
    child = Child(VLLMConfig(model=tmp_path, python="python", scheduler=choice))
    assert child._runs_our_scheduler(version) is ours
    demanding = Child(VLLMConfig(model=tmp_path, python="p", scheduler=SchedulerChoice.WEFTLINE))
    with pytest.raises(api.EngineDied, match=r"0\.31\.0"):
        demanding._runs_our_scheduler("0.31.0")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BUSY % (3, 0.25), Gauge(0.25, 3, 3)),
        (BUSY % (1, 0.25) + BUSY % (2, 0.75), Gauge(0.75, 3, 6)),  # data-parallel engines
        (b"", None),
        (b'vllm:kv_cache_usage_perc{engine="0"} 0.5\n', None),
        (BUSY % (1, 7.0), None),  # no share
        (b"vllm:kv_cache_usage_perc{} 1e+e\nvllm:num_requests_waiting{} 1\n", None),
    ],
)
def test_the_gauge_is_read_from_metrics(text: bytes, found: Gauge | None) -> None:
    """Another vLLM may word its metrics otherwise: then nothing is known, and nothing fails."""
    assert gauge(text) == found


async def test_an_idle_engine_is_not_asked() -> None:
    """The last look forgets what a busy vLLM said."""
    asked: list[int] = []
    seen: list[Gauge] = []
    idle = asyncio.Event()

    async def metrics() -> bytes:
        asked.append(1)
        return BUSY % (1, 0.5)

    def note(found: Gauge, requests: int) -> None:
        seen.append(found)
        if found == Gauge():
            idle.set()

    meter = GaugeReader(metrics, lambda: int(len(asked) < 3), note, every_s=0.0)
    meter.start()
    await idle.wait()
    assert len(asked) == 3 and seen[:-1] == [Gauge(0.5, 1, 3)] * 3
    assert meter.last == Gauge()


def test_without_other_clients_all_of_the_cache_is_ours() -> None:
    """Blocks that are filled in part, and a request that ends meanwhile, are no other clients."""
    assert Gauge(0.9, 0, 4).others(1000, 3, 100) == 0
    assert Gauge(0.9, 1, 4).others(1000, 3, 100) == 800
    assert Gauge(0.1, 1, 4).others(1000, 3, 100) == 0
