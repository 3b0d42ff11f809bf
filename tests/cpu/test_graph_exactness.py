"""Scheduling decides when a token is computed, never which: random graphs, run in every way.

The tiny random model computes in float64, so neither batches nor the order of sums can change a
token.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.pretended_engine import PretendedConfig
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.own.models import resolve
from weftline_engine.transport.process import ProcessEngine
from weftline_server.app import create_app
from weftline_server.config import OPTIMISATIONS, ServerConfig

GRAPHS = int(os.environ.get("EXACT_GRAPHS", "16"))  # `make test-long` draws 200
AT_ONCE = 25
# On a pretended device a step takes 10 times as long, so it runs a quarter.
OF_A_DEVICE = GRAPHS // 4

TEXTS = (
    "Summarise the following, and be brief about it: ",
    "Translate into French. ",
    "abc",
    "\n\n",
)

Values = dict[str, str]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., Path]) -> Path:
    """A Llama of one layer with a byte-level tokenizer and room for long prompts."""
    home = tmp_path_factory.mktemp("tiny")
    directory = resolve(str(write_gguf(home / "tiny.gguf")), home=home)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 4096
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def random_graph(seed: int) -> list[dict[str, Any]]:
    """Make chains, fans and diamonds of two to six calls. Some have two outputs, many share a
    prefix.
    """
    rng = random.Random(seed)
    calls: list[dict[str, Any]] = []
    variables: list[str] = []
    for number in range(rng.randint(2, 6)):
        reads = rng.sample(variables, min(len(variables), rng.choice((0, 1, 1, 2))))
        segments: list[dict[str, str]] = [{"text": rng.choice(TEXTS) + str(rng.randint(0, 9))}]
        holders: list[dict[str, Any]] = []
        for place, variable in enumerate(reads):
            segments += [{"input": f"i{place}"}, {"text": rng.choice(TEXTS)}]
            holders.append({"name": f"i{place}", "in_out": "in", "semantic_var_id": variable})
        for place in range(rng.choice((1, 1, 1, 2))):
            variable = f"v{number}_{place}"
            tokens = rng.randint(16, 24)
            sampling = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            segments += [{"output": f"o{place}"}, {"text": rng.choice(TEXTS)}]
            out = {"name": f"o{place}", "in_out": "out", "semantic_var_id": variable}
            holders.append({**out, "sampling": sampling})
            variables.append(variable)
        calls.append({"name": f"c{number}", "prompt": segments, "placeholders": holders})
    return calls


async def as_a_graph(http: httpx2.AsyncClient, calls: list[dict[str, Any]]) -> Values:
    """Send all calls in one submit, the last one first, and return every value."""
    wanted = [
        h["semantic_var_id"] for c in calls for h in c["placeholders"] if h["in_out"] == "out"
    ]
    body = {"calls": calls[::-1], "get": wanted, "close": True}
    answer = await http.post("/v1/submit", json=body, timeout=None)
    assert answer.status_code == 200, answer.text
    values: Values = answer.json()["values"]
    return values


async def by_hand(http: httpx2.AsyncClient, calls: list[dict[str, Any]]) -> Values:
    """Compute each output as a completion of its own, with its prompt put together here."""
    values: Values = {}
    for call in calls:
        holders = {h["name"]: h for h in call["placeholders"]}
        prompt = ""
        for segment in call["prompt"]:
            if "output" not in segment:
                name = segment.get("input")
                prompt += segment["text"] if name is None else values[_variable(holders[name])]
                continue
            holder = holders[segment["output"]]
            body = {"prompt": prompt, **holder["sampling"]}
            answer = await http.post("/v1/completions", json=body, timeout=None)
            assert answer.status_code == 200, answer.text
            values[_variable(holder)] = answer.json()["choices"][0]["text"]
            prompt += values[_variable(holder)]
    return values


def _variable(holder: dict[str, Any]) -> str:
    return str(holder["semantic_var_id"])


async def run_all(
    model: Path,
    config: ServerConfig,
    engines: int,
    run: Any,
    graphs: int = GRAPHS,
    *,
    on_device: bool = False,
) -> list[Values]:
    """Run the graphs on one server, many at a time, on the CPU or on a pretended device."""
    embedded = EmbeddedConfig(model=model, dtype="float64", kv_tokens=8192, step_tokens=96)
    child = PretendedConfig(embedded) if on_device else embedded
    makers = {f"e{i}": (lambda: ProcessEngine(child)) for i in range(engines)}
    app = create_app(config, makers)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx2.ASGITransport(app)
        http = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url="http://t")
        )
        room = asyncio.Semaphore(AT_ONCE)

        async def one(seed: int) -> Values:
            async with room:
                values: Values = await run(http, random_graph(seed))
                return values

        return await asyncio.gather(*map(one, range(graphs)))


async def test_every_way_to_run_a_graph_gives_the_same_values(tiny_model: Path) -> None:
    """Each graph runs call by call, as a graph with and without optimisations, under both policies,
    and on three engines.
    """
    expected = await run_all(tiny_model, ServerConfig(), 1, by_hand)
    ways = {
        "app": (ServerConfig(), 1),
        "nothing": (ServerConfig(without=OPTIMISATIONS), 1),
        "request": (ServerConfig(policy="request"), 1),
        "three engines": (ServerConfig(), 3),
    }
    for name, (config, engines) in ways.items():
        values = await run_all(tiny_model, config, engines, as_a_graph)
        different = [seed for seed in range(GRAPHS) if values[seed] != expected[seed]]
        assert different == [], f"{name}: graphs {different[:5]}"


async def test_a_device_gives_the_same_values(tiny_model: Path) -> None:
    """Our kernels' stand-ins compute the graphs on a pretended device."""
    config, count = ServerConfig(), OF_A_DEVICE
    expected = await run_all(tiny_model, config, 1, by_hand, count)
    values = await run_all(tiny_model, config, 1, as_a_graph, count, on_device=True)
    assert [seed for seed in range(count) if values[seed] != expected[seed]] == []
