"""What a vLLM is told of the borders of prompts: by fills before them, or in their requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.null.endpoints import Endpoint, answer
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine

BLOCK = 16
METRICS = f'vllm:cache_config_info{{num_gpu_blocks="100",block_size="{BLOCK}"}} 1.0\n'.encode()
SHARED = tuple(range(1000, 1250))  # 240 tokens are whole blocks
DEEP = (*SHARED, *range(2000, 2200))  # of two siblings: 448 tokens are whole blocks
SIBLINGS = [(*DEEP, *[1] * 40), (*DEEP, *[2] * 40), (*SHARED, *[3] * 40)]


async def answers(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    """One token, in which every whole block but the last one was found."""
    length = len(request["prompt"])
    usage = {
        "prompt_tokens": length,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": (length - 1) // BLOCK * BLOCK},
    }
    choice = {"text": "a", "token_ids": [1], "finish_reason": "stop"}
    data = json.dumps({"choices": [choice], "usage": usage}).encode()
    if not request.get("stream"):
        writer.write(answer(200, data))
        return
    body = b"data: " + data + b"\n\ndata: [DONE]\n\n"
    writer.write(answer(200, body, "content-type: text/event-stream"))


def generate(name: str, tokens: tuple[int, ...], *borders: int) -> api.Op:
    return api.Op(
        id=name,
        guesses=api.Guesses(borders=borders),
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tokens,
        sampling=api.SamplingParams(max_tokens=1),
    )


@asynccontextmanager
async def started(folder: Path, endpoint: Endpoint) -> AsyncIterator[VLLMEngine]:
    """An engine in front of that vLLM, which has a model with a state."""
    config = {"layer_types": ["conv", "full_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    endpoint.metrics = METRICS
    async with endpoint.on(folder / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        engine = VLLMEngine(VLLMConfig(model=folder, connect=connect))
        assert (await engine.start()).wants_borders
        endpoint.requests.clear()
        yield engine
        await engine.close()


async def ended(engine: VLLMEngine, ops: int) -> None:
    """Wait until so many ops or more have finished."""
    async for events in engine.events():
        ops -= sum(isinstance(one, api.Finished) for one in events)
        if ops <= 0:
            return


async def sent(folder: Path, inside: bool, ops: Sequence[api.Op]) -> list[dict[str, Any]]:
    """What a vLLM gets for these ops. Our scheduler may be inside."""
    endpoint = Endpoint(answers)
    async with started(folder, endpoint) as engine:
        writer = None
        if inside:
            await engine._notes.listen(folder / "notes")
            _, writer = await asyncio.open_unix_connection(folder / "notes")
            for _ in range(4):  # turns in which the engine accepts it
                await asyncio.sleep(0)
            assert engine._notes.are_read
        for op in ops:
            engine.submit(op)
        await ended(engine, len(ops))
        if writer is not None:
            writer.close()
            await engine._notes.close()
    return endpoint.requests


@pytest.mark.parametrize("inside", [False, True])
async def test_borders_are_filled_first_or_sent(tmp_path: Path, inside: bool) -> None:
    """Two of three siblings have more in common. A plain vLLM computes each beginning by a request,
    with one token more, before the prompts that have it. Our scheduler gets the borders, and the
    prompts at once."""
    ops = [generate(f"s{at}", one) for at, one in enumerate(SIBLINGS)]
    requests = await sent(tmp_path, inside, ops)
    lengths = [len(one["prompt"]) for one in requests]
    told = {len(one["prompt"]): one.get("vllm_xargs") for one in requests}
    if inside:
        assert sorted(lengths) == sorted(map(len, SIBLINGS))
        borders = {length: sent and sent["weftline_borders"] for length, sent in told.items()}
        assert borders == {len(DEEP) + 40: [240, 448], len(SHARED) + 40: [240]}
    else:
        assert sorted(lengths) == sorted([241, 449, *map(len, SIBLINGS)])
        assert lengths[0] == 241 and lengths.index(449) < lengths.index(len(DEEP) + 40)
        assert set(told.values()) == {None}


@pytest.mark.parametrize("inside", [False, True])
async def test_a_first_prompt_keeps_the_state_where_others_are_likely_to_part(
    tmp_path: Path, inside: bool
) -> None:
    """Our scheduler is told of four borders at most. A plain vLLM computes the beginning before the
    likeliest one by a request. The next prompt, whose beginning is known, has no such request."""
    likely = (500, 250, 900, 700, 1100, 255)
    first, second = (*range(1200), 1), (*range(1150), 2)
    ops = [generate("first", first, *likely), generate("alone", first[-100:], 50)]
    requests = await sent(tmp_path, inside, ops)
    told = [(len(one["prompt"]), one.get("vllm_xargs")) for one in requests]
    if inside:
        borders = {length: xargs["weftline_borders"] for length, xargs in told if xargs}
        assert borders == {len(first): [240, 496, 688, 896], 100: []}
        return
    assert sorted(told) == [(100, None), (497, None), (len(first), None)]
    assert told.index((497, None)) < told.index((len(first), None))
    later = await sent(tmp_path, inside, [generate("first", first), generate("next", second, 500)])
    assert 497 not in [len(one["prompt"]) for one in later]


async def test_a_prompt_waits_for_a_fill_of_its_beginning_that_runs(tmp_path: Path) -> None:
    """Equal prompts come while the beginning is filled for the first one. None overtakes the fill.
    Another prompt does not wait."""
    asked, may_end = asyncio.Event(), asyncio.Event()

    async def slowly(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        if len(request["prompt"]) == 497:
            asked.set()
            await may_end.wait()
        await answers(writer, request)

    endpoint, prompt = Endpoint(slowly), tuple(range(1200))
    async with started(tmp_path, endpoint) as engine:
        engine.submit(generate("first", prompt, 500))
        await asked.wait()
        engine.submit(generate("second", prompt, 500))
        engine.submit(generate("other", prompt[1:]))
        await ended(engine, 1)
        assert [len(one["prompt"]) for one in endpoint.requests] == [497, 1199]
        may_end.set()
        await ended(engine, 2)
    assert [len(one["prompt"]) for one in endpoint.requests] == [497, 1199, 1200, 1200]
