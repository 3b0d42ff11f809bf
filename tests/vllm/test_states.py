"""Models that vLLM continues at few places only, in a real vLLM, with random weights.

An LFM2 has a state beside its keys and values, and a Gemma 3 windows. A vLLM that runs already gets
requests alone. In one of our own the scheduler is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Lfm2Config, PretrainedConfig

from tests.contract.target import Target
from tests.endpoint_counts import metric
from tests.llamacpp.random_ggufs import SIZES
from tests.null.asgi import Server, served
from tests.tool_turns import agent_turns
from tests.vllm.conftest import BLOCK
from weftline_engine import api
from weftline_engine.remote.openai.endpoint import EndpointConfig
from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.engine import VLLMEngine
from weftline_engine.remote.vllm.vllm_child import Child
from weftline_engine.remote.vllm.vllm_settings import SchedulerChoice

# The first test of each vLLM waits for it, which loads for a minute or more.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

SHARED = tuple(range(1000, 1400))  # tokens that calls have in common
WHOLE = len(SHARED) // BLOCK * BLOCK
OWN = 40  # tokens of each call's own
TURNS = 30  # of an agent


WIDE = {**SIZES, "hidden_size": 128}  # vLLM for CPUs takes heads of 32 and more
CONNECTED, INSIDE, WINDOWS = "LFM2, connected", "LFM2, inside", "Gemma 3, inside"


def shape(case: str) -> PretrainedConfig:
    """A small model: two short convolutions and attention, or five windows and attention."""
    if case == WINDOWS:
        return Gemma3TextConfig(**WIDE, num_hidden_layers=6, head_dim=32, sliding_window=128)
    layers = ["conv", "full_attention", "conv"]
    # The two sizes are in published files, and vLLM reads them.
    return Lfm2Config(**WIDE, conv_dim=128, block_dim=128, num_hidden_layers=3, layer_types=layers)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[CONNECTED, INSIDE, WINDOWS])
async def config(
    request: pytest.FixtureRequest,
    vllm_config: VLLMConfig,
    environment: None,
    smollm2_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[VLLMConfig]:
    """How an engine gets to vLLM: by connecting to one that runs, or by starting its own."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape(request.param)).float().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        copy(smollm2_directory / name, folder)
    own = replace(vllm_config, model=folder, max_model_len=8192)
    if request.param != CONNECTED:
        yield replace(own, vllm_scheduler=SchedulerChoice.WEFTLINE)
        return
    child = Child(own)
    async with asyncio.timeout(600):
        await child.start()
    where = EndpointConfig(url="http://vllm/v1", socket=child.endpoint.socket)
    yield replace(own, engine_python=None, connect=where, kv_events=child.events)
    await child.close()


class SharedEngine(VLLMEngine):
    """Tells its events to the server that has started it, and to a test beside it."""

    def __init__(self, config: VLLMConfig) -> None:
        super().__init__(config)
        self._copies: asyncio.Queue[list[api.Event]] | None = None

    async def events(self) -> AsyncIterator[list[api.Event]]:
        if self._copies is not None:
            while True:
                yield await self._copies.get()
        self._copies = asyncio.Queue()
        async for events in super().events():
            self._copies.put_nowait(events)
            yield events


@pytest.fixture(scope="module")
def engine(config: VLLMConfig) -> SharedEngine:
    return SharedEngine(config)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(engine: SharedEngine) -> AsyncIterator[Server]:
    async with asyncio.timeout(600), served("model", lambda: engine) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hybrid(engine: SharedEngine, server: Server) -> AsyncIterator[Target]:
    target = Target(engine, {}, grain=BLOCK)
    target.listening = asyncio.create_task(target._listen())
    yield target
    target.listening.cancel()


def op(name: str, tokens: tuple[int, ...], **options: Any) -> api.Op:
    params = api.SamplingParams(max_tokens=4, temperature=0.0)
    generate = api.Kind.GENERATE
    return api.Op(id=name, kind=generate, context=name, tokens=tokens, sampling=params, **options)


def cached(heard: list[Any]) -> list[int]:
    return [one.finished.usage.cached_tokens for one in heard if one.finished is not None]


async def computed(engine: VLLMEngine) -> int:
    """The prompt tokens that a vLLM has computed, by its own count."""
    name = "vllm:prompt_tokens_by_source_total"
    return metric(await engine.metrics(), name, source="local_compute")


async def test_siblings_go_on_where_they_part(hybrid: Target, engine: SharedEngine) -> None:
    """One of them has computed their common beginning. Each other computes its own part behind the
    last whole block of it. That is what vLLM has computed, too: a fill has one token more."""
    before = await computed(engine)
    siblings = [op(f"s{at}", (*SHARED, *range(at, at + OWN))) for at in range(100, 104)]
    assert sorted(cached(await hybrid.run(*siblings))) == [0, WHOLE, WHOLE, WHOLE]
    [again] = cached(await hybrid.run(op("again", (*SHARED, *range(500, 500 + OWN)))))
    assert again == WHOLE
    fills = 0 if engine._notes.are_read else 1
    told = len(SHARED) + OWN + 4 * (len(SHARED) - WHOLE + OWN)
    assert await computed(engine) - before == told + fills


async def test_a_next_turn_goes_on_behind_the_last_prompt(hybrid: Target) -> None:
    """Nothing is filled for it."""
    first = tuple(range(2000, 2320))
    await hybrid.run(op("turn", (*first, 7)))
    [found] = cached(await hybrid.run(op("next", (*first, 7, *range(60)))))
    assert found == len(first)


async def test_a_freed_context_stays_while_there_is_room(hybrid: Target) -> None:
    """A client without a session sends its next turn after others'. Our scheduler would drop what
    nobody reads again, when no block is empty."""
    first = tuple(range(6000, 6320))
    await hybrid.run(op("freed", (*first, 7)))
    hybrid.engine.free("freed")
    for other in range(3):
        await hybrid.run(op(f"other{other}", tuple(range(7000 + 400 * other, 7400 + 400 * other))))
    [found] = cached(await hybrid.run(op("back", (*first, 7, *range(60)))))
    assert found == len(first)


async def test_its_events_say_where_it_goes_on(hybrid: Target) -> None:
    """Each context is held where others part from it, and at its last whole block. Another has the
    blocks of the first between those, and no state."""
    first = tuple(range(3000, 3400))
    whole = [op(f"e{own}", (*first, *[own] * 5 * BLOCK)) for own in (1, 2)]
    await hybrid.run(*whole)
    end = len(whole[0].tokens or ()) // BLOCK * BLOCK
    for one in whole:
        heard = await hybrid.until(
            one.id, lambda heard: any(places(event) for event in heard.events)
        )
        assert [places(event) for event in heard.events][-1] == (WHOLE, end)
    between = op("between", first[: 5 * BLOCK + 1])
    [found] = cached(await hybrid.run(between))
    assert found == 0


def places(event: api.Event) -> tuple[int, ...]:
    return (event.places or ()) if isinstance(event, api.ContextMoved) else ()


async def test_an_agent_of_thirty_turns_finds_its_conversation(server: Server) -> None:
    """Each turn goes on behind the last whole block of the prompt before it. The first agent's
    state is kept where its last turn begins, so the second one finds its instructions and tools."""
    first = await agent_turns(server, TURNS, "Plan a trip to Rome.")
    second = await agent_turns(server, TURNS, "Is it warmer in Oslo, or by the sea?")
    for turns in (first, second):
        before = [(prompt - 1) // BLOCK * BLOCK for prompt, _ in turns]
        assert [cached for _, cached in turns[1:]] == before[:-1]
    assert share(first[1:]) >= 0.95
    assert second[0][1] > 1000
    assert share(second) >= 0.95


def share(usages: list[tuple[int, int]]) -> float:
    """The share of prompt tokens that was found in the cache."""
    prompt, found = (sum(numbers) for numbers in zip(*usages, strict=True))
    return found / prompt
