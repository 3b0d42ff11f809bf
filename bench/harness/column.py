"""The column of `weftline bench on-vllm`: its workloads, and the systems that it pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.harness.systems import BASELINE, SERVER_ONLY

NAME = "on-vllm"
PAIRS = 8  # with eight, a sign test can give 0.008
_NEAR, _BOTH = (0,), (0, 250)


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A workload at one of its points: the first whose name begins with `only`.

    `metrics` are those in the table; without any it is the workload's first. The client of each of
    the `semaphores` runs a limited number of applications at once. `unchanged` is weftline in front
    of vLLM, for a program in which nothing was changed but the address. A run at quick sizes takes
    about `run_s` on two idle cores with AVX2, the mean of all systems and round trips. It is from
    the table of such a machine, but for a single chat, gpts and mixed, where it is a guess.
    """

    run_s: float
    only: str = ""
    delays_ms: tuple[int, ...] = _NEAR
    metrics: tuple[str, ...] = ()
    semaphores: tuple[str, ...] = ()
    unchanged: str | None = None

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems, the baseline first."""
        unchanged = (self.unchanged,) if self.unchanged else ()
        return (BASELINE, *self.semaphores, *SERVER_ONLY, *unchanged)


COLUMN: Mapping[str, ColumnRow] = {
    "independent_chat": ColumnRow(0.8, "1 at once", _BOTH),
    "chain_summary": ColumnRow(3.5, delays_ms=_BOTH),
    "many_chains": ColumnRow(7.4, delays_ms=_BOTH),
    "map_reduce": ColumnRow(3.1, delays_ms=_BOTH),
    "copilot": ColumnRow(3.0, delays_ms=_BOTH),
    "gpts": ColumnRow(6.0),
    "multi_agent": ColumnRow(8.6),
    "mixed": ColumnRow(8.0, metrics=("chat ms per token", "map-reduce seconds")),
    "rag": ColumnRow(3.6, delays_ms=_BOTH),
    "agent_loop": ColumnRow(2.2, delays_ms=_BOTH),
    "many_agents": ColumnRow(
        50.0, semaphores=("langchain-vllm-4", "langchain-vllm-8"), unchanged="openai-weftline-vllm"
    ),
}
