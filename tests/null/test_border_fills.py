"""What a vLLM is told of the borders of prompts: by fills before them, or in their requests."""

from __future__ import annotations

import asyncio
import json
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


def generate(name: str, tokens: tuple[int, ...]) -> api.Op:
    return api.Op(
        id=name,
        kind=api.Kind.GENERATE,
        context=name,
        tokens=tokens,
        sampling=api.SamplingParams(max_tokens=1),
    )


@pytest.mark.parametrize("inside", [False, True])
async def test_borders_are_filled_first_or_sent(tmp_path: Path, inside: bool) -> None:
    """Two of three siblings have more in common. A plain vLLM computes each beginning by a request,
    with one token more, before the prompts that have it. Our scheduler gets the borders, and the
    prompts at once."""
    config = {"layer_types": ["conv", "full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    endpoint = Endpoint(answers)
    endpoint.metrics = METRICS
    async with endpoint.on(tmp_path / "e") as socket:
        connect = EndpointConfig(url="http://e/v1", socket=socket)
        engine = VLLMEngine(VLLMConfig(model=tmp_path, connect=connect))
        await engine.start()
        endpoint.requests.clear()
        if inside:
            await engine._notes.listen(tmp_path / "notes")
            _, writer = await asyncio.open_unix_connection(tmp_path / "notes")
            for _ in range(4):  # turns in which the engine accepts it
                await asyncio.sleep(0)
            assert engine._notes.are_read
        for number, tokens in enumerate(SIBLINGS):
            engine.submit(generate(f"s{number}", tokens))
        ended = 0
        async for events in engine.events():
            ended += sum(isinstance(one, api.Finished) for one in events)
            if ended == len(SIBLINGS):
                break
        await engine.close()
    lengths = [len(one["prompt"]) for one in endpoint.requests]
    told = {len(one["prompt"]): one.get("vllm_xargs") for one in endpoint.requests}
    if inside:
        writer.close()
        assert sorted(lengths) == sorted(map(len, SIBLINGS))
        borders = {length: sent and sent["weftline_borders"] for length, sent in told.items()}
        assert borders == {len(DEEP) + 40: [240, 448], len(SHARED) + 40: [240]}
    else:
        assert sorted(lengths) == sorted([241, 449, *map(len, SIBLINGS)])
        assert lengths[0] == 241 and lengths.index(449) < lengths.index(len(DEEP) + 40)
        assert set(told.values()) == {None}
