"""Replays sessions on a simulated engine, and compares what was computed with Belady's optimum."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bench.simulator.thunder import Thunder
from bench.simulator.world import World, world
from weftline.protocol import Call, InOut, Placeholder, Sampling, Segment, Submit
from weftline_engine.simulated import SimulatedConfig
from weftline_engine.virtual_time import VirtualLoop, run
from weftline_server.session.session import Session

from .belady import Access, Tree, computed
from .trace import Recorded, Turn
from .words import Conversation

# By the name of a system: what is switched off, and whether a gate like ThunderAgent's is in front.
SYSTEMS: dict[str, tuple[frozenset[str], bool]] = {
    "weftline": (frozenset(), False),
    "without admission": (frozenset({"admission"}), False),
    "LRU": (frozenset({"admission", "retention"}), False),
    "LRU behind ThunderAgent's gate": (frozenset({"admission", "retention"}), True),
}


@dataclass(slots=True)
class Outcome:
    """The accesses with their starts in the engine, the prompt tokens that it computed, and the
    seconds of each session."""

    pool: int
    tree: Tree = field(default_factory=Tree)
    accesses: list[tuple[float, Access]] = field(default_factory=list)
    lasted: list[float] = field(default_factory=list)
    prompts: int = 0
    computed: int = 0
    seconds: float = 0.0

    @property
    def row(self) -> dict[str, float | None]:
        """The figures: sessions a minute, the share of prompts that was cached, the tokens that
        were computed beside the optimum's, and those that were computed again."""
        in_order = [one for _, one in sorted(self.accesses, key=lambda one: one[0])]
        least, best = computed(in_order, math.inf), computed(in_order, self.pool)
        again, at_best = self.computed - least, best - least
        return {
            "sessions_per_minute": round(60 * len(self.lasted) / self.seconds, 2),
            "slowest_s": round(max(self.lasted), 1),
            "median_s": round(statistics.median(self.lasted), 1),
            "cached_share": round(1 - self.computed / self.prompts, 4),
            "computed_to_belady": round(self.computed / best, 3),
            "recomputed": again,
            "recomputed_to_belady": round(again / at_best, 3) if at_best else None,
        }


def replay(
    sessions: Sequence[Recorded],
    system: str,
    *,
    at_once: int,
    pool: int,
    config: SimulatedConfig,
) -> Outcome:
    """Run all sessions, `at_once` of them together, on an engine with `pool` tokens."""
    without, gated = SYSTEMS[system]
    config = replace(config, kv_tokens=pool, predicts="retention" not in without)

    async def main(loop: VirtualLoop) -> Outcome:
        async with world(loop, config, without=without) as made:
            return await _all(made, sessions, at_once, gated)

    return run(main)


async def _all(made: World, sessions: Sequence[Recorded], at_once: int, gated: bool) -> Outcome:
    (engine,) = made.engines
    outcome = Outcome(engine.config.kv_tokens)
    left = list(sessions)
    gate = Thunder(engine.config.kv_tokens, lambda: made.now)
    polling = asyncio.create_task(gate.poll_forever())

    async def client() -> None:
        while left:
            session, began = left.pop(0), made.now
            await _one(made, session, outcome, gate if gated else None)
            outcome.lasted.append(made.now - began)

    await asyncio.gather(*(client() for _ in range(at_once)))
    polling.cancel()
    outcome.computed, outcome.seconds = engine.computed, made.now
    return outcome


async def _one(made: World, recorded: Recorded, outcome: Outcome, gate: Thunder | None) -> None:
    words = Conversation(recorded.id)
    session = made.driver.open("replay")
    for number, turn in enumerate(recorded.turns):
        await asyncio.sleep(turn.think_s)
        prompt = words.prompt(turn)
        if gate is not None:
            await gate.request(recorded.id, len(prompt) + turn.output)
        variable = f"turn{number}"
        await made.driver.submit(session, Submit(calls=(_call(prompt, variable, turn),)))
        answer = (await made.driver.readers.get(session, variable)).text.split()
        if gate is not None:
            gate.responded(recorded.id)
        words.answered(turn, prompt, answer)
        outcome.prompts += len(prompt)
        # The KV of the answer's last token is never computed.
        path = outcome.tree.path([*prompt, *answer[:-1]])
        outcome.accesses.append((_started(session, variable), Access(path, len(prompt))))
    made.driver.close(session)
    if gate is not None:
        gate.ended(recorded.id)


def _started(session: Session, variable: str) -> float:
    """When the engine began with the call that wrote the variable."""
    task = session.execution.producer(variable)
    usage = task.steps[-1].usage if task is not None else None
    assert usage is not None, "the call has ended well"
    return usage.started


def _call(prompt: Sequence[str], variable: str, turn: Turn) -> Call:
    sampling = Sampling(max_tokens=turn.output, temperature=0.0, ignore_eos=True)
    out = Placeholder(name="o", in_out=InOut.OUT, semantic_var_id=variable, sampling=sampling)
    text = Segment(text="".join(f"{word} " for word in prompt))
    return Call(name="turn", prompt=(text, Segment(output="o")), placeholders=(out,))
