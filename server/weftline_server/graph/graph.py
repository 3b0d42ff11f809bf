"""The graph of a session: primitives and the variables between them (Parrot section 4.2).

A graph grows while it runs and is never rebuilt. `check` looks only at the new primitives and at
those that they can reach, so adding to a large session costs as much as the addition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from weftline.errors import AlreadySet, CyclicGraph, DuplicateProducer, InvalidRequest
from weftline_server.graph.primitive import DISTANT, Flow, Primitive, Task

# Flows into primitives that go on when the writer fails.
_TOLERANT = DISTANT | {Flow.OUTCOME}


class Graph:
    """The primitives of one session. Keys are ids: of primitives, tasks and variables."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.primitives: dict[str, Primitive] = {}
        self.producer: dict[str, str] = {}  # variable → the one primitive that writes it
        self.consumers: dict[str, list[str]] = {}  # variable → primitives that read it
        self._followers: dict[str, list[str]] = {}  # primitive → primitives that come after it

    def check(self, tasks: Sequence[Task], is_set: Iterable[str] = ()) -> None:
        """Raise unless `tasks` can join; `is_set` names the variables that already have a value.

        Errors: DuplicateProducer, AlreadySet, CyclicGraph; InvalidRequest for a task that writes no
        variable.
        """
        taken = set(is_set)
        fresh: dict[str, str] = {}
        for task in tasks:
            if not task.writes:
                raise InvalidRequest(f"call {task.name!r} has no output: add one", param=task.name)
            for primitive in task.primitives:
                for var in primitive.writes:
                    if var in taken:
                        raise AlreadySet(f"variable {var!r} already has a value", param=var)
                    if var in fresh or var in self.producer:
                        raise DuplicateProducer(
                            f"variable {var!r} would be written by two calls: rename one", param=var
                        )
                    fresh[var] = primitive.id
        if not self._is_in_order(tasks):
            self._check_cycles(tasks)

    def _is_in_order(self, tasks: Sequence[Task]) -> bool:
        """Whether each new primitive stands after all that it waits for, and so in no cycle."""
        read: set[str] = set()
        awaited: set[str] = set()
        for task in tasks:
            for primitive in task.primitives:
                read.update([one.variable for one in primitive.reads])
                awaited.update(primitive.after)
                if primitive.id in awaited or primitive.id in self._followers:
                    return False
                for var in primitive.writes:
                    if var in read or var in self.consumers:
                        return False
        return True

    def _check_cycles(self, tasks: Sequence[Task]) -> None:
        """Depth-first over the new primitives and those below them; the old ones are acyclic."""
        added = {primitive.id: primitive for task in tasks for primitive in task.primitives}
        names = {task.id: task.name for task in tasks}
        readers: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        for primitive in added.values():
            for read in primitive.reads:
                readers.setdefault(read.variable, []).append(primitive.id)
            for before in primitive.after:
                followers.setdefault(before, []).append(primitive.id)

        def next_of(id: str) -> Iterator[str]:
            primitive = added.get(id) or self.primitives[id]
            for var in primitive.writes:
                yield from readers.get(var, ())
                yield from self.consumers.get(var, ())
            yield from followers.get(id, ())
            yield from self._followers.get(id, ())

        done: set[str] = set()
        for start in added:
            if start in done:
                continue
            path: dict[str, Iterator[str]] = {start: next_of(start)}
            while path:
                id = next(reversed(path))
                child = next(path[id], None)
                if child is None:
                    done.add(id)
                    del path[id]
                elif child in path:
                    task = (added.get(child) or self.primitives[child]).task
                    name = names.get(task) or self.tasks[task].name
                    raise CyclicGraph(f"call {name!r} waits for its own output", param=name)
                elif child not in done:
                    path[child] = next_of(child)

    def add(self, tasks: Sequence[Task]) -> None:
        """Add `tasks`, which have passed `check`."""
        for task in tasks:
            self.tasks[task.id] = task
            for primitive in task.primitives:
                self._enter(primitive)

    def _enter(self, primitive: Primitive, known: int = 0) -> None:
        """Add a primitive with its edges, but for its first `known` reads."""
        self.primitives[primitive.id] = primitive
        for var in primitive.writes:
            self.producer[var] = primitive.id
        for read in primitive.reads[known:]:
            self.consumers.setdefault(read.variable, []).append(primitive.id)
        for before in primitive.after:
            self._followers.setdefault(before, []).append(primitive.id)

    def rewrite(self, rewritten: Mapping[str, Primitive]) -> list[str]:
        """Give each primitive named in `rewritten` its new form: same id, task and writes.

        Return those that wait for something else than before. Raises CyclicGraph, and then changes
        nothing.
        """
        before = {id: self.primitives[id] for id in rewritten}
        moved = [id for id, new in rewritten.items() if not _is_wired_alike(new, before[id])]
        if moved:
            self._exchange(moved, before, rewritten)
            grown = [id for id in moved if not _waits_for_less(rewritten[id], before[id])]
            if not self._is_acyclic_below(grown):
                self._exchange(moved, rewritten, before)
                raise CyclicGraph("a rewritten primitive would wait for its own output")
        self.primitives.update(rewritten)
        return moved

    def _exchange(
        self, ids: Iterable[str], old: Mapping[str, Primitive], new: Mapping[str, Primitive]
    ) -> None:
        """Give the primitives their new form. Reads that both begin with are left as they are: a
        list of ten thousand items comes in pieces, and the same primitive reads all of them.
        """
        for id in ids:
            same = 0
            if old[id].after == new[id].after:
                count = min(len(old[id].reads), len(new[id].reads))
                same = count if old[id].reads[:count] == new[id].reads[:count] else 0
            for read in old[id].reads[same:]:
                self.consumers[read.variable].remove(id)
            for above in old[id].after:
                self._followers[above].remove(id)
            self._enter(new[id], same)

    def _is_acyclic_below(self, starts: Iterable[str]) -> bool:
        """Whether no primitive in `starts` can be reached from itself."""
        for start in starts:
            seen: set[str] = set()
            waiting = list(self.downstream(start))
            while waiting:
                id = waiting.pop()
                if id == start:
                    return False
                if id not in seen:
                    seen.add(id)
                    waiting.extend(self.downstream(id))
        return True

    def downstream(self, id: str) -> Collection[str]:
        """Primitives that read an output of `id` or come after it, each once."""
        writes, followers = self.primitives[id].writes, self._followers.get(id)
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

    def affected_by(self, failed: Iterable[str]) -> tuple[Collection[str], Collection[str]]:
        """Tasks that cannot go on without the primitives `failed`, which are of one task, and
        primitives that take their failure as input."""
        tasks: dict[str, None] = {}
        tolerant: dict[str, None] = {}
        for one in failed:
            primitive = self.primitives[one]
            for id in self.downstream(one):
                below = self.primitives[id]
                flows = {read.flow for read in below.reads if read.variable in primitive.writes}
                if one in below.after or flows - _TOLERANT:
                    tasks[below.task] = None
                elif Flow.OUTCOME in flows:
                    tolerant[id] = None
            tasks.pop(primitive.task, None)
        return tasks, tolerant

    def topological(self) -> list[str]:
        """Every primitive after all primitives that it waits for."""
        waiting = {id: len(self.upstream(id)) for id in self.primitives}
        order = [id for id, count in waiting.items() if count == 0]
        for id in order:
            for child in self.downstream(id):
                waiting[child] -= 1
                if waiting[child] == 0:
                    order.append(child)
        assert len(order) == len(self.primitives), "the graph has a cycle"
        return order


def _is_wired_alike(one: Primitive, other: Primitive) -> bool:
    """Whether both wait for the same variables and primitives."""
    if len(one.reads) != len(other.reads):
        return False
    variables = [read.variable for read in one.reads]
    return one.after == other.after and variables == [read.variable for read in other.reads]


def _waits_for_less(new: Primitive, old: Primitive) -> bool:
    """Whether all that `new` waits for is awaited by `old` too, so that no cycle can come up."""
    if len(new.reads) > len(old.reads):
        return False
    read = {one.variable for one in old.reads}
    return set(new.after) <= set(old.after) and all(one.variable in read for one in new.reads)
