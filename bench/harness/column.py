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
    of vLLM, for a program in which nothing was changed but the address.
    """

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
    "independent_chat": ColumnRow("1 at once", _BOTH),
    "chain_summary": ColumnRow(delays_ms=_BOTH),
    "many_chains": ColumnRow(delays_ms=_BOTH),
    "map_reduce": ColumnRow(delays_ms=_BOTH),
    "copilot": ColumnRow(delays_ms=_BOTH),
    "gpts": ColumnRow(),
    "multi_agent": ColumnRow(),
    "mixed": ColumnRow(metrics=("chat ms per token", "map-reduce seconds")),
    "rag": ColumnRow(delays_ms=_BOTH),
    "agent_loop": ColumnRow(delays_ms=_BOTH),
    "many_agents": ColumnRow(
        semaphores=("langchain-vllm-4", "langchain-vllm-8"), unchanged="openai-weftline-vllm"
    ),
}
