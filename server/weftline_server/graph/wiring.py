"""Primitives and the edges between them."""

from __future__ import annotations

from collections.abc import Collection

from weftline_server.graph.primitive import Primitive, Task


class Wiring:
    """What a graph has, and tasks that are to join it. Keys are ids: of primitives, tasks and
    variables.
    """

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.primitives: dict[str, Primitive] = {}
        self.producer: dict[str, str] = {}  # variable → the one primitive that writes it
        self.consumers: dict[str, list[str]] = {}  # variable → primitives that read it
        self.followers: dict[str, list[str]] = {}  # primitive → primitives that come after it

    def downstream(self, id: str) -> Collection[str]:
        """Primitives that read an output of `id` or come after it, each once."""
        writes, followers = self.primitives[id].writes, self.followers.get(id)
        if len(writes) == 1 and not followers:
            return self.consumers.get(writes[0], ())
        found: dict[str, None] = {}
        for var in writes:
            found.update(dict.fromkeys(self.consumers.get(var, ())))
        if followers:
            found.update(dict.fromkeys(followers))
        return found

    def upstream(self, id: str) -> Collection[str]:
        """Primitives that write an input of `id` or have to end before it, each once."""
        primitive, found = self.primitives[id], dict[str, None]()
        for read in primitive.reads:
            if (writer := self.producer.get(read.variable)) is not None:
                found[writer] = None
        if primitive.after:
            found.update(dict.fromkeys(primitive.after))
        return found

    def tasks_above(self, task: str) -> Collection[str]:
        """Tasks that a primitive of `task` waits for, each once, without itself."""
        found: dict[str, None] = {}
        for primitive in self.tasks[task].primitives:
            for above in self.upstream(primitive.id):
                found[self.primitives[above].task] = None
        found.pop(task, None)
        return found
