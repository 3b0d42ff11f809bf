"""The types of lowering: steps of a chain, and the requests of a lowering to the client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from langchain_core.runnables import Runnable, RunnableConfig


@dataclass(frozen=True, slots=True)
class StepRun:
    """A request to run `step` in the client, when the client has all of `value`.

    The result is the step's output. `is_quick` marks a step that only renders or parses, which
    takes less time than starting a thread. With `may_wait` the result may be a Local, a promise of
    the output, if calls can be submitted before the step has run.
    """

    step: Runnable[Any, Any]
    value: Any
    config: RunnableConfig
    options: Mapping[str, Any] = field(default_factory=dict)
    is_quick: bool = False
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request to wait for the server's variables in `value`. The result is the concrete value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fork:
    """A request to run all `parts` side by side. The result is the list of their results."""

    parts: tuple[Steps, ...]


Request = StepRun | Fetch | Fork
Steps = Generator[Request, Any, Any]
"""A part of a chain as a generator: it yields requests, and returns the part's output."""


@dataclass(frozen=True, slots=True)
class Step:
    """A runnable with its configuration, the options bound to it, and its place in the chain."""

    runnable: Any
    config: RunnableConfig
    path: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, runnable: Any, *names: str) -> Step:
        """A part of this step."""
        return Step(runnable, self.config, (*self.path, *names))


class Mode(Enum):
    """The purpose of a lowering."""

    RUN = "run"
    EXPLAIN = "explain"  # tells where each step runs: every call counts
    AHEAD = "ahead"  # submits calls ahead of the run: only calls with a certain prompt count
    AHEAD_OF_STREAM = "ahead of stream"  # the same, for a run whose answers are streamed

    @property
    def is_ahead(self) -> bool:
        """Whether calls are submitted before LangChain makes them."""
        return self in (Mode.AHEAD, Mode.AHEAD_OF_STREAM)


@dataclass(frozen=True, slots=True)
class Note:
    """Where one step runs, and why. `path` is its place in the chain."""

    path: tuple[str, ...]
    step: str
    in_server: bool
    why: str
    place: str = ""  # the file and line of a function of the user


Noting = Callable[[Note], None]


class Lowerer(Protocol):
    """The part of a lowering that the handlers of single steps use."""

    mode: Mode

    def step(self, step: Step, value: Any) -> Steps:
        """Lower any step."""

    def run(
        self,
        step: Step,
        value: Any,
        reason: str,
        *,
        is_quick: bool = False,
        may_wait: bool = True,
    ) -> Steps:
        """Have the client run a step."""

    def note(self, step: Step, why: str, *, in_server: bool = False) -> None:
        """Note where a step runs."""

    def attempt(self) -> AbstractContextManager[None]:
        """Undo what was lowered in this block, if it raises CannotCompile."""

    def opened(self, value: Any) -> Steps:
        """A list or an object of the server as a list or dict of variables."""

    def binding(self, step: Step, value: Any) -> Steps:
        """Lower a step with options and configuration bound to it."""


Handler = Callable[[Step, Any], Steps]
"""Lowers one kind of step."""
