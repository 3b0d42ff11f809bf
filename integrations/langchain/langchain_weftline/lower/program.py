"""Runs the parts of a lowering side by side, each as far as it can go. No I/O, clock or threads.

A part yields its requests. A step for the client to run is returned as a job. A part that needs the
server's values waits for them. The caller submits calls when no part can go on without them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_weftline.lower.lowered import Tree, build, tree_of, variables_of
from langchain_weftline.lower.steps import Fetch, Fork, Run, Steps
from langchain_weftline.model.failures import own_failures
from weftline.protocol import Call
from weftline.watching import Failed, Value


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request, a part or a whole chain ended."""

    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        """The value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(eq=False, slots=True)
class Part:
    """A generator of the lowering. A forked part knows its parent and its place among the parts."""

    steps: Steps
    parent: Part | None = None
    place: int = 0
    ended: list[Outcome | None] = field(default_factory=list)  # of the parts that it forked

    def take(self, place: int, outcome: Outcome) -> Outcome | None:
        """Note that a forked part has ended. Returns the joint outcome after the last one."""
        self.ended[place] = outcome
        done = [end for end in self.ended if end is not None]
        if len(done) < len(self.ended):
            return None
        # As in LangChain's thread pools, all parts run to their end, and the first error is raised.
        failed = next((end for end in done if end.error is not None), None)
        return failed or Outcome([end.value for end in done])


@dataclass(frozen=True, slots=True)
class Job:
    """A step that the client has to run for a part."""

    part: Part
    run: Run


class Program:
    """A lowering under way. `known` has the variables that have settled."""

    def __init__(self, root: Steps) -> None:
        self._ready: deque[tuple[Part, Outcome]] = deque([(Part(root), Outcome())])
        self._waiting: dict[Part, Tree] = {}
        self.known: dict[str, Value | Failed] = {}
        self.running = 0
        self.outcome: Outcome | None = None

    def advance(self) -> list[Job]:
        """Run every part as far as it can go. Returns the steps that the client has to run."""
        jobs: list[Job] = []
        while self._ready:
            part, outcome = self._ready.popleft()
            try:
                if outcome.error is not None:
                    request = part.steps.throw(outcome.error)
                else:
                    request = part.steps.send(outcome.value)
            except StopIteration as done:
                self._end(part, Outcome(done.value))
            except Exception as error:
                self._end(part, Outcome(error=error))
            else:
                jobs += self._take(part, request)
        self.running += len(jobs)
        return jobs

    def _take(self, part: Part, request: Run | Fetch | Fork) -> list[Job]:
        match request:
            case Run():
                return [Job(part, request)]
            case Fetch(value):
                self._waiting[part] = tree_of(value)
                self._look(part)
            case Fork(parts):
                part.ended = [None] * len(parts)
                self._ready += [
                    (Part(steps, part, place), Outcome()) for place, steps in enumerate(parts)
                ]
                if not parts:
                    self._ready.append((part, Outcome([])))
        return []

    def ran(self, job: Job, outcome: Outcome) -> None:
        """Note that the client has run a step."""
        self.running -= 1
        self._ready.append((job.part, outcome))

    def told(self, event: Value | Failed) -> None:
        """Note that a variable has settled."""
        self.known[event.variable] = event
        for part in list(self._waiting):
            self._look(part)

    @property
    def is_alone(self) -> bool:
        """Whether nothing goes on apart from one step of the client."""
        return self.running == 1 and not self._waiting

    @property
    def can_go_on(self) -> bool:
        """Whether a part can go on without waiting."""
        return bool(self._ready)

    def wanted(self) -> list[str]:
        """The distinct variables that parts wait for."""
        names = [name for tree in self._waiting.values() for name in variables_of(tree)]
        return [name for name in dict.fromkeys(names) if name not in self.known]

    def _look(self, part: Part) -> None:
        """Let `part` go on if all its variables are ready, or one has failed."""
        tree = self._waiting[part]
        outcome = settle(tree, self.known)
        if outcome is not None:
            del self._waiting[part]
            self._ready.append((part, outcome))

    def _end(self, part: Part, outcome: Outcome) -> None:
        if part.parent is None:
            self.outcome = outcome
        elif (all_ended := part.parent.take(part.place, outcome)) is not None:
            self._ready.append((part.parent, all_ended))


def settle(
    tree: Tree,
    known: Mapping[str, Value | Failed],
    calls: Sequence[Call] = (),
    *,
    streamed: bool = False,
) -> Outcome | None:
    """The outcome of `tree`, None while it is not known. Failures are LangChain's own exceptions.

    `calls` are the calls whose own transforms may have failed.
    """
    names = variables_of(tree)
    found = [known[name] for name in names if name in known]
    failed = next((event for event in found if isinstance(event, Failed)), None)
    if failed is None and len(found) < len(names):
        return None
    values = [event for event in found if isinstance(event, Value)]
    try:
        with own_failures(tree, calls, streamed=streamed):
            if failed is not None:
                raise failed.error
            return Outcome(
                build(
                    tree,
                    {event.variable: event.value for event in values},
                    {event.variable: event for event in values},
                )
            )
    except Exception as error:
        return Outcome(error=error)
