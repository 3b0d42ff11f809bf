"""The explanation of a compiled chain. Making it sends no request and runs no code of the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable

from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.planning import plan
from langchain_weftline.lower.steps import Mode, Note


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where each step runs and why, in the order of the chain. `str` gives a table."""

    steps: tuple[Note, ...]

    @property
    def in_server(self) -> tuple[Note, ...]:
        """The steps that the server runs."""
        return tuple(step for step in self.steps if step.in_server)

    @property
    def in_client(self) -> tuple[Note, ...]:
        """The steps that the client runs."""
        return tuple(step for step in self.steps if not step.in_server)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        names = [".".join(step.path) for step in self.steps]
        widths = (
            max(map(len, ["part", *names])),
            max(len(name) for name in ["step", *(step.step for step in self.steps)]),
        )
        yield f"{'part':<{widths[0]}}  {'step':<{widths[1]}}  where   why"
        for step, name in zip(self.steps, names, strict=True):
            where = "server" if step.in_server else "client"
            yield f"{name:<{widths[0]}}  {step.step:<{widths[1]}}  {where}  {step.why}"

    def _repr_markdown_(self) -> str:
        return f"```\n{self}\n```"


def explain(
    chain: Runnable[Any, Any],
    input: Any,
    mode: Mode = Mode.EXPLAIN,
    options: Mapping[str, Any] | None = None,
) -> Explanation:
    """How `chain` would be lowered for `input`. UNKNOWN stands for any input."""
    notes: list[Note] = []
    plan(Lowering(mode=mode, note=notes.append), chain, input, options=options)
    return Explanation(tuple(notes))
