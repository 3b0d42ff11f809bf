"""Tasks that are to join a graph, wired among themselves: a part at a time, so that 10,000 of them
hold nobody up. To join is then a merge of a few dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weftline.contract.errors import CyclicGraph, DuplicateProducer, InvalidRequest
from weftline_server.graph.primitive import Primitive, Task
from weftline_server.graph.wiring import Wiring

PART = 512  # primitives and edges that are looked at between two pauses, in 2 ms


class Addition(Wiring):
    """Some tasks, and the edges between them."""

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Addition:
        """All of the tasks at once. Raises what `wire` raises."""
        made = cls()
        for _ in made.wire(tasks):
            pass
        return made

    def wire(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Add the tasks and check them, with a pause after each part.

        Raises InvalidRequest for a task that writes no variable, DuplicateProducer, CyclicGraph.
        """
        begun, in_order = 0, True
        for task in tasks:
            if not task.writes:
                raise InvalidRequest(f"call {task.name!r} has no output: add one", param=task.name)
            self.tasks[task.id] = task
            for primitive in task.primitives:
                in_order &= self._enter(primitive)
                begun += 1 + len(primitive.reads)
            if begun >= PART:
                begun = 0
                yield
        if not in_order:
            yield from self._check_cycles()

    def _enter(self, primitive: Primitive) -> bool:
        """Add a primitive. Return whether the primitive stands after all that it waits for, so that
        no cycle goes through it.
        """
        self.primitives[primitive.id] = primitive
        for read in primitive.reads:
            self.consumers.setdefault(read.variable, []).append(primitive.id)
        for before in primitive.after:
            self.followers.setdefault(before, []).append(primitive.id)
        in_order = primitive.id not in self.followers
        for var in primitive.writes:
            if var in self.producer:
                raise duplicate(var)
            self.producer[var] = primitive.id
            in_order &= var not in self.consumers
        return in_order

    def _check_cycles(self) -> Iterator[None]:
        """Depth-first over the primitives, with a pause after each part."""
        begun = 0
        done: set[str] = set()
        for start in self.primitives:
            if start in done:
                continue
            path: dict[str, Iterator[str]] = {start: iter(self.downstream(start))}
            while path:
                if (begun := begun + 1) % PART == 0:
                    yield
                id = next(reversed(path))
                child = next(path[id], None)
                if child is None:
                    done.add(id)
                    del path[id]
                elif child in path:
                    raise cyclic(self.tasks[self.primitives[child].task])
                elif child not in done:
                    path[child] = iter(self.downstream(child))


def duplicate(variable: str) -> DuplicateProducer:
    """The error for a variable that two tasks would write."""
    return DuplicateProducer(
        f"variable {variable!r} would be written by two calls: rename one", param=variable
    )


def cyclic(task: Task) -> CyclicGraph:
    """The error for a task on a cycle."""
    return CyclicGraph(f"call {task.name!r} waits for its own output", param=task.name)
