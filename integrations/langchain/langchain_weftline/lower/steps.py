"""What lowering asks for: the parts of a chain as generators, and the requests that they yield."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig


@dataclass(frozen=True, slots=True)
class Run:
    """Run `step` in the client, on a value that the client has; answered with what it gives.

    `is_quick` when it only renders or parses, so that no thread is worth its while.
    """

    step: Runnable[Any, Any]
    value: Any
    config: RunnableConfig
    options: Mapping[str, Any] = field(default_factory=dict)
    is_quick: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Wait for what `value` holds of the server's; answered with the value itself."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fork:
    """Go on with all `parts` at once; answered with the list of what they return."""

    parts: tuple[Steps, ...]


Request = Run | Fetch | Fork
Steps = Generator[Request, Any, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A runnable with its configuration, what is bound to it, and where in the chain it stands."""

    runnable: Any
    config: RunnableConfig
    path: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, runnable: Any, *names: str) -> Step:
        """A part of this step."""
        return Step(runnable, self.config, (*self.path, *names))


class Mode(Enum):
    """What a chain is lowered for."""

    RUN = "run"
    EXPLAIN = "explain"  # to tell where each step runs: any call counts
    AHEAD = "ahead"  # to be sent ahead of the run: only calls whose prompts are certain
    AHEAD_OF_STREAM = "ahead of stream"  # of a run whose answers are streamed

    @property
    def is_ahead(self) -> bool:
        """Whether calls are sent before LangChain comes to them."""
        return self in (Mode.AHEAD, Mode.AHEAD_OF_STREAM)


@dataclass(frozen=True, slots=True)
class Note:
    """Where one step runs, and why; `path` is what the chain calls the place where it stands."""

    path: tuple[str, ...]
    step: str
    in_server: bool
    why: str


Noting = Callable[[Note], None]
