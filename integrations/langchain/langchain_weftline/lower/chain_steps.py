"""The types of lowering: steps of a chain, and where each one runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig


@dataclass(frozen=True, slots=True)
class ChainStep:
    """A runnable with its configuration, the options bound to it, and its place in the chain."""

    runnable: Any
    config: RunnableConfig
    path: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, runnable: Any, *names: str) -> ChainStep:
        """A part of this step."""
        return ChainStep(runnable, self.config, (*self.path, *names))


@dataclass(frozen=True, slots=True)
class Note:
    """Where one step runs, and why. `path` is its place in the chain.

    `in_server` says that the server computes what the step gives before LangChain runs the step.
    """

    path: tuple[str, ...]
    step: str
    in_server: bool
    why: str
    place: str = ""  # the file and line of a function of the user


Noting = Callable[[Note], None]


class Lowerer(Protocol):
    """The part of a lowering that the handlers of single steps use."""

    streams: bool

    def step(self, step: ChainStep, value: Any) -> Any:
        """The output of any step, as far as it is known before the run."""

    def part(self, step: ChainStep, value: Any) -> Any:
        """The output of a step whose failure leaves the steps beside it alone."""

    def whole(self, step: ChainStep, value: Any) -> Any:
        """The output of a step that the server computes. Raises CannotCompile where it cannot."""

    def run(self, step: ChainStep, value: Any, reason: str) -> Any:
        """The output of a step that only LangChain runs."""

    def unknown(self, step: ChainStep, reason: str) -> Any:
        """The output of a step that waits for what only the run knows."""

    def note(self, step: ChainStep, why: str, *, in_server: bool = False) -> None:
        """Note where a step runs."""

    def attempt(self) -> AbstractContextManager[None]:
        """Undo what was lowered in this block, if it raises CannotCompile."""

    def opened(self, step: ChainStep, value: Any) -> Any:
        """A list or an object of the server, whose items only the run knows."""

    def binding(self, step: ChainStep, value: Any) -> Any:
        """Lower a step with options and configuration bound to it."""


Handler = Callable[[ChainStep, Any], Any]
"""Lowers one kind of step: its output, of symbolic values where the server makes them."""
