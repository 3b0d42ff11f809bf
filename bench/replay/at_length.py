"""Sessions at the lengths that agents have, on a simulated GPU with the step times of vLLM.

A replay at full length takes minutes of a processor for each system. So all lengths are divided by
`scale`, and the costs of a token are multiplied by it. One step then stands for `scale` steps: it
decodes `scale` tokens of each sequence, and computes as many prompt tokens as all of them. Seconds
stay those of the full lengths.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.gpu import roofline
from bench.replay.production import CONTINUUM, GATED, LRU, OURS, Outcome, replay
from bench.replay.trace import Recorded, Turn
from weftline.errors import InvalidRequest
from weftline_engine.api import PROMPT_ITL_S
from weftline_engine.pretend.host_tier import HostOrder
from weftline_engine.pretend.simulation import SimulatedConfig

DEVICES = {"H100": roofline.H100, "H200": roofline.H200}
SHAPES = {"8b": "Llama-3-8B", "32b": "Qwen2.5-32B", "70b-on-4": "Llama-3-70B on 4"}
ALL_FIT = "all contexts fit"  # LRU on a cache that holds them
OFFLOAD = "LRU and host memory"  # vLLM with its connector: LRU in both
OURS_HOST = "weftline and host memory"
HOSTED = {OFFLOAD: (LRU, HostOrder.LRU), OURS_HOST: (OURS, HostOrder.NEXT_USE)}
SYSTEMS = (LRU, GATED, CONTINUUM, OURS, OFFLOAD, OURS_HOST, ALL_FIT)
# A longer pause is a user's, who has left. It counts as so many seconds.
LONGEST_PAUSE_S = 60.0
# Sessions with fewer requests are no agents.
FEWEST_TURNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A model's shape on a device, whose lengths are divided by `scale`."""

    shape: str
    device: str
    scale: int = 20
    host_gib: float = 128.0

    @property
    def host_tokens(self) -> int:
        """The tokens that fit into host memory, of full length."""
        shape = roofline.SHAPES[SHAPES[self.shape]]
        return int(self.host_gib * (1 << 30) / (shape.token_bytes * shape.devices))

    def config(self) -> SimulatedConfig:
        """The engine. Raises InvalidRequest where the weights leave no KV cache."""
        full = roofline.config(
            roofline.SHAPES[SHAPES[self.shape]], DEVICES[self.device], roofline.VLLM
        )
        if full.kv_tokens < full.context_limit:
            raise InvalidRequest(
                f"a {self.device} holds {max(0, full.kv_tokens):,} tokens of KV cache beside "
                f"{self.shape}, and a session needs {full.context_limit:,}; take another --device "
                "or --shape",
                param="shape",
            )
        cost, by = full.cost, self.scale
        return replace(
            full,
            cost=replace(
                cost,
                step_s=cost.step_s * by,
                fill_s=cost.fill_s * by,
                sequence_s=cost.sequence_s * by,
                # A step stands for `by` steps, each of which reads `by` tokens for each token here.
                token_s=cost.token_s * by * by,
                attend_s=cost.attend_s * by * by,
                copy_s=cost.copy_s * by,
            ),
            kv_tokens=full.kv_tokens // by,
            context_limit=full.context_limit // by,
            part_tokens=max(1, full.part_tokens // by),
        )

    def scaled(self, sessions: Sequence[Recorded]) -> list[Recorded]:
        """The sessions that are agents', as far as their contexts fit."""
        limit = self.config().context_limit * self.scale
        found = [Recorded(one.id, self._turns(one, limit)) for one in sessions]
        return [one for one in found if len(one.turns) >= FEWEST_TURNS]

    def _turns(self, session: Recorded, limit: int) -> tuple[Turn, ...]:
        by = self.scale
        return tuple(
            replace(
                one,
                input=max(2, one.input // by),
                output=max(1, round(one.output / by)),
                shared=min(one.shared, one.input) // by,
                think_s=min(one.think_s, LONGEST_PAUSE_S),
            )
            for one in session.turns
            if one.input + one.output <= limit
        )


def clients(sessions: Sequence[Recorded], pool: int, pressure: float) -> int:
    """How many sessions need `pressure` times the pool at their longest."""
    return max(1, round(pressure * pool / _usual_peak(sessions)))


def semaphores(sessions: Sequence[Recorded], room: int, at_once: int) -> list[int]:
    """The semaphores that are tried: around as many sessions as fit at their longest."""
    fit = room / _usual_peak(sessions)
    tried = {max(1, round(fit * share)) for share in (0.75, 1.0, 1.25, 1.6, 2.0)}
    return sorted(one for one in tried if one < at_once)


def row(outcome: Outcome, scale: int) -> dict[str, float]:
    """The figures of a system. A session's time counts from its client's start, so a wait for a
    semaphore is in it."""
    lasted = sorted(outcome.lasted)
    between = sorted(outcome.between)
    prompts = sum(prompt for _, _, prompt in outcome.texts)
    return {
        "sessions_per_minute": round(outcome.rate, 3),
        "mean_s": round(statistics.fmean(lasted)),
        "p90_s": round(lasted[int(0.9 * len(lasted))]),
        "slowest_to_median": round(lasted[-1] / statistics.median(lasted), 2),
        "between_p99_ms": round(1e3 * between[int(0.99 * len(between))] / scale),
        "busy_share": round(outcome.busy_s / outcome.seconds, 2),
        "cached_share": round(1 - outcome.computed / prompts, 3),
    }


def rows(
    regime: Regime, sessions: Sequence[Recorded], systems: Sequence[str], at_once: int
) -> Iterator[dict[str, object]]:
    """The row of each system, and of LRU's semaphores, with so many sessions together."""
    whole, peak = regime.config(), _usual_peak(sessions)
    pool, host = whole.kv_tokens, regime.host_tokens // regime.scale
    for system in systems:
        name, order = HOSTED.get(system, (LRU if system == ALL_FIT else system, None))
        # vLLM by itself has no such limit.
        itl_s = PROMPT_ITL_S * regime.scale if name == OURS else None
        config = replace(whole, host_order=order, host_tokens=host if order else 0, itl_s=itl_s)
        room = pool * at_once if system == ALL_FIT else pool
        swept = {LRU: pool, OFFLOAD: max(pool, host)}.get(system)
        slots_tried = semaphores(sessions, swept, at_once) if swept else []
        for slots in (None, *slots_tried):
            outcome = replay(sessions, name, at_once=at_once, pool=room, config=config, slots=slots)
            yield {
                "pressure": round(at_once * peak / pool, 1),
                "at_once": at_once,
                "system": system,
                "slots": slots,
                **row(outcome, regime.scale),
            }


def _usual_peak(sessions: Sequence[Recorded]) -> float:
    return statistics.fmean(one.largest for one in sessions)
