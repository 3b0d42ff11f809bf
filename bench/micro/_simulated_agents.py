"""Coding agents of AIPerf's sessions on a simulated GPU, at their full lengths, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

from bench.micro._agent_load import Timed
from bench.replay.at_length import ALL_FIT, HOSTED, SYSTEMS, Regime
from bench.replay.coding_sessions import CodingSession, Piece
from bench.replay.production import GATED, LRU, OURS, PINNED, SERVER
from bench.replay.words import VOCABULARY
from tests.simulator.world import asking, usage_of, world
from weftline_engine.api import PROMPT_ITL_S
from weftline_engine.pretend.virtual_time import VirtualLoop, run

NAMES = tuple(
    one for one in SYSTEMS if one not in (*PINNED, GATED)
)  # systems without more than a server


def simulated(
    regime: Regime,
    sessions: Sequence[CodingSession],
    system: str,
    slots: int | None,
    ramp_s: float,
) -> list[Timed]:
    """The requests of all sessions, each begun `ramp_s` after the one before. Lengths are divided
    by the regime's scale, and the tokens of `Timed` are of full length."""
    name, order = HOSTED.get(system, (LRU if system == ALL_FIT else system, None))
    whole = regime.config()
    config = replace(
        whole,
        kv_tokens=whole.kv_tokens * (len(sessions) if system == ALL_FIT else 1),
        predicts=name == OURS,
        # vLLM by itself has no such limit.
        itl_s=PROMPT_ITL_S * regime.scale if name == OURS else None,
        host_order=order,
        host_tokens=regime.host_tokens // regime.scale if order else 0,
    )

    async def main(loop: VirtualLoop) -> list[Timed]:
        found: list[Timed] = []
        async with world(loop, config, without=SERVER[name]) as made:
            room = asyncio.Semaphore(slots) if slots else nullcontext()

            async def one(number: int, session: CodingSession) -> None:
                await asyncio.sleep(number * ramp_s)
                opened, prompt = made.driver.open("agents"), ""
                for turn_number, turn in enumerate(session.turns):
                    await asyncio.sleep(turn.think_s)
                    prompt += "".join(map(_words, turn.pieces))
                    if prompt.count(" ") + turn.output >= config.context_limit:
                        break  # the model's context ends
                    wanted, out = loop.time(), f"turn{turn_number}"
                    async with room:
                        call = asking(prompt, out, turn.output, ignore_eos=True)
                        prompt += await made.ask(opened, call) + " "
                    first = usage_of(opened, out).filled
                    tokens = turn.output * regime.scale
                    found.append(Timed(wanted, first, loop.time(), tokens))
                made.driver.close(opened)

            await asyncio.gather(*(one(*item) for item in enumerate(sessions)))
        return found

    return run(main)


@cache
def _words(piece: Piece) -> str:
    name, count = piece
    drawn = random.Random(name)
    return "".join(f"w{drawn.randrange(VOCABULARY)} " for _ in range(count))
