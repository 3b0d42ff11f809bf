"""`weftline doctor --calibrate`: measures what KV cache costs here, and which strategies pay.

The command starts the embedded engine once. The exit code is 1 if a strategy for paused contexts is
never the best at any context length, though the engine could follow it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from weftline.contract.errors import InvalidRequest
from weftline_engine.api import Description, KvCosts
from weftline_engine.own.embedded.config import EmbeddedConfig
from weftline_engine.own.models import cached
from weftline_engine.transport.process import ProcessEngine
from weftline_server.commands.tables import aligned
from weftline_server.schedule.memory.waste import Load, Strategy, unreachable, waste

# The pauses that are looked at, in seconds: a calculator, a search, a person.
PAUSES = (0.0001, 0.01, 0.1, 1.0, 10.0, 60.0)
LENGTHS = (128, 512, 2048, 8192)
# What else runs: nothing, and a full batch of 16 with 512 tokens each.
LOADS = (Load(), Load(16, 8192))


def run(model: str) -> int:
    """Measure the engine with this model, and print its costs. Raises InvalidRequest."""
    directory = cached(model, direct=True)
    if directory is None:
        raise InvalidRequest(f"the model {model} is not here: run `weftline pull {model}` first")
    described = asyncio.run(_described(EmbeddedConfig(model=directory)))
    if described.kv_costs is None:
        print("this engine does not measure its costs: on a GPU contexts are only kept or dropped")
        return 0
    print(report(described.kv_costs, described.context_limit))
    return 1 if never(described.kv_costs, described.context_limit) else 0


async def _described(config: EmbeddedConfig) -> Description:
    engine = ProcessEngine(config)
    try:
        return await engine.start()
    finally:
        await engine.close()


def never(costs: KvCosts, limit: int) -> list[Strategy]:
    """The strategies that the engine could follow and that never pay, under any load."""
    possible = set(Strategy) if costs.host_tokens else set(Strategy) - {Strategy.SWAP}
    found = [unreachable(costs, limit, load, PAUSES) for load in LOADS]
    return sorted(possible.intersection(*found))


def report(costs: KvCosts, limit: int) -> str:
    """The costs, the best strategy by length and pause, and the strategies that never pay."""
    lines = [
        f"a step takes {costs.step_s * 1e3:.2f} ms, and {costs.fill_s * 1e6:.1f} us for each of at "
        f"most {costs.chunk} prompt tokens",
        f"a token is copied to host memory or back in {costs.copy_s * 1e6:.2f} us; "
        f"{costs.host_tokens} tokens fit there",
    ]
    head = ("tokens", "beside", *(f"{pause:g} s" for pause in PAUSES))
    rows = [
        (
            str(tokens),
            str(load.held),
            *(waste(tokens, pause, costs, load).best.value for pause in PAUSES),
        )
        for tokens in LENGTHS
        if tokens <= limit
        for load in LOADS
    ]
    lines += ["", "what wastes least during a pause:", aligned(head, rows)]
    for strategy in never(costs, limit):
        lines.append(f"{strategy.value} never pays, at any length and pause: check the costs above")
    if not costs.host_tokens:
        copy = replace(costs, host_tokens=limit)
        pays = any(Strategy.SWAP not in unreachable(copy, limit, load, PAUSES) for load in LOADS)
        lines.append(f"with a host tier, swap would {'pay' if pays else 'never pay'}")
    return "\n".join(lines)
