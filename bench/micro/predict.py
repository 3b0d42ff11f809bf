"""Predicts what the server earns before vLLM on an H100: a roofline's step times, simulated time.

    weftline bench predict
    weftline bench predict --shapes "Llama-3-8B" --delays 0 --workloads chain,agents

Each row is one workload on one simulated vLLM (bench/gpu/roofline.py): run by a client that
makes every call itself, without admission and retention and with the least recently used blocks
evicted; and run by the server, which gets the whole graph. Nothing here was measured on a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gpu.roofline import H100, SHAPES, VLLM, config
from bench.harness import machine
from bench.harness.results import stamp, write
from tests.simulator.agents import Agents, simulate
from tests.simulator.programs import Program, Step, by_client, chain, map_reduce, perform
from tests.simulator.world import world
from weftline_engine.pretend.simulation import SimulatedConfig
from weftline_engine.pretend.virtual_time import VirtualLoop, run

PLAIN = frozenset({"admission", "retention"})  # what a server without applications lacks
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Load:
    """`at_once` runs of a program, which start together."""

    program: Program
    at_once: int = 1


# Parrot's Figures 11, 12b, 14 and 15, and a refine over retrieved chunks as in Teola's naive RAG.
LOADS: dict[str, Load] = {
    "chain": Load(chain(20, own=1024, output=50)),
    "many chains": Load(chain(20, own=1024, output=50), at_once=20),
    "map-reduce": Load(map_reduce(20, own=1024, output=50)),
    "copilot": Load((Step(own=600, output=300, role="copilot", shared=5107),), at_once=64),
    "RAG": Load(chain(4, own=1500, output=150), at_once=16),
}
# Agents with contexts of 9,000 to 15,000 tokens, on a KV cache for a third of them.
AGENTS = Agents(
    agents=32, applications=64, shared=3000, task=6000, result=700, answer=150, pause_s=2.0
)
SEMAPHORES = (8, 12, 16)


def main() -> int:
    """Print a row for each shape, workload and delay."""
    parser = argparse.ArgumentParser(
        prog="weftline bench predict", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shapes", default="Llama-3-8B,Llama-3-70B on 4")
    parser.add_argument("--workloads", default=",".join([*LOADS, "agents"]))
    parser.add_argument("--delays", default="0,0.25", help="seconds of a round trip to the client")
    parser.add_argument("--folder", type=Path, help="write the rows to this folder")
    args = parser.parse_args()
    rows: list[Row] = []
    for shape in args.shapes.split(","):
        made = config(SHAPES[shape], H100, VLLM)
        for name in args.workloads.split(","):
            found = _agents(made) if name == "agents" else _programs(made, name, args.delays)
            for row in found:
                rows.append({"shape": shape, "workload": name, **row})
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if args.folder is not None:
        write(args.folder, "predicted", {**stamp(machine.describe()), "rows": rows})
    return 0


def _programs(made: SimulatedConfig, name: str, delays: str) -> list[Row]:
    rows: list[Row] = []
    for delay in map(float, delays.split(",")):
        plain = _mean_s(replace(made, predicts=False), LOADS[name], delay, by_client_alone=True)
        ours = _mean_s(made, LOADS[name], delay, by_client_alone=False)
        rows.append(
            {
                "delay_s": delay,
                "client_s": round(plain, 2),
                "weftline_s": round(ours, 2),
                "ratio": round(plain / ours, 2),
            }
        )
    return rows


def _mean_s(made: SimulatedConfig, load: Load, delay: float, *, by_client_alone: bool) -> float:
    """The mean seconds of an application."""
    policy, without = ("request", PLAIN) if by_client_alone else ("app", frozenset[str]())

    async def main(loop: VirtualLoop) -> float:
        async with world(loop, made, policy=policy, without=without) as here:

            async def one(number: int) -> float:
                if by_client_alone:
                    return await by_client(here, load.program, number, delay)
                return (await perform(here, load.program, number)).seconds + delay

            return statistics.mean(await asyncio.gather(*map(one, range(load.at_once))))

    return run(main)


def _agents(made: SimulatedConfig) -> list[Row]:
    """Applications a minute: without the server, behind the best semaphore, and with it."""
    pool = replace(made, kv_tokens=AGENTS.pool)
    plain = replace(pool, predicts=False)

    def rate(config: SimulatedConfig, agents: Agents, off: frozenset[str]) -> float:
        ended = simulate(agents, config, off).ended
        return 60 * len(ended) / max(ended)

    alone = rate(plain, AGENTS, PLAIN)
    few = max(rate(plain, replace(AGENTS, at_once=room), PLAIN) for room in SEMAPHORES)
    ours = rate(pool, AGENTS, frozenset())
    return [
        {
            "client_a_minute": round(alone, 1),
            "semaphore_a_minute": round(few, 1),
            "weftline_a_minute": round(ours, 1),
            "ratio": round(ours / alone, 2),
            "over_semaphore": round(ours / few, 2),
        }
    ]


if __name__ == "__main__":
    sys.exit(main())
