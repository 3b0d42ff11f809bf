"""Tasks that are to enter a session. Their runs, variables and edges are made before, a part at a
time, so that a submit of 10,000 calls holds nobody up.

Nothing of a draft is in the session. The draft enters whole, in one event, which takes some
milliseconds. So a submit stays all or nothing for readers and for the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weftline.contract.protocol import Criterion
from weftline_server.graph.addition import Addition
from weftline_server.graph.primitive import Task
from weftline_server.passes import consumers_first
from weftline_server.session.hold_queue import HoldQueue
from weftline_server.session.need import decides
from weftline_server.session.origin import NOBODY, Origin
from weftline_server.session.task import PrimitiveRun, TaskRun
from weftline_server.session.variable import SessionVariable

PART = 256  # tasks that are drafted between two pauses, in 2 ms


class Draft:
    """The runs, variables and edges of some tasks. A draft enters one session, once."""

    def __init__(
        self, tasks: Sequence[Task], detached: bool = False, origin: Origin = NOBODY
    ) -> None:
        self.tasks = tasks
        self.added = Addition()
        self.runs: dict[str, TaskRun] = {}
        self.primitives: dict[str, PrimitiveRun] = {}
        self.variables: dict[str, SessionVariable] = {}
        self.owned: dict[str, list[TaskRun]] = {}  # task → tasks that it adds
        self.criteria: list[tuple[str, Criterion]] = []
        # The primitives, consumers first, each with the number of its edges; empty for a few.
        self.order: list[tuple[str, int]] = []
        self.branches = False  # whether one of them decides which variables are needed
        self.work = self.output = 0
        self._detached = detached
        self._origin = origin

    @classmethod
    def of(cls, tasks: Sequence[Task], detached: bool = False, origin: Origin = NOBODY) -> Draft:
        """A draft that is made at once. Raises what `make` raises."""
        made = cls(tasks, detached, origin)
        for _ in made.make():
            pass
        return made

    def make(self) -> Iterator[None]:
        """Make the draft, with a pause after each part.

        Raises InvalidRequest, DuplicateProducer, CyclicGraph: the tasks do not fit together.
        """
        yield from self.added.wire(self.tasks)
        for number, task in enumerate(self.tasks, 1):
            self._enter(task)
            if number % PART == 0:
                yield
        if HoldQueue.are_many(self.primitives):
            yield
            known = self.added.primitives
            for id in consumers_first(self.added, known):
                self.order.append((id, len(known[id].reads) + len(known[id].after)))
            yield

    def _enter(self, task: Task) -> None:
        variables = self.variables
        named = [read.variable for one in task.primitives for read in one.reads]
        for var in (*named, *task.writes, *task.reads):
            if var not in variables:
                variables[var] = SessionVariable(var)
        run = self.runs[task.id] = TaskRun(task, 0.0, self._detached, self._origin)
        if task.owner:
            self.owned.setdefault(task.owner, []).append(run)
        for one, made in zip(task.primitives, run.primitives, strict=True):
            self.primitives[made.id] = made
            self.branches |= decides(one)
            self.work += made.work
            self.output += made.output
        if task.criteria is not None:
            self.criteria += [(var, task.criteria) for var in task.writes]
