"""The graph of a session: primitives and the variables between them (Parrot section 4.2).

A graph grows while it runs and is never rebuilt. `check` looks only at the new primitives and at
those that they can reach, so adding to a large session costs as much as the addition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from weftline.contract.errors import AlreadySet, CyclicGraph
from weftline_server.graph.addition import Addition, cyclic, duplicate
from weftline_server.graph.primitive import DISTANT, Flow, Primitive
from weftline_server.graph.wiring import Wiring

# Flows into primitives that go on when the writer fails.
_TOLERANT = DISTANT | {Flow.OUTCOME}


class Graph(Wiring):
    """The primitives of one session."""

    def check(self, added: Addition, is_set: Iterable[str] = ()) -> None:
        """Raise unless `added` can join; `is_set` names the variables that already have a value.

        Errors: DuplicateProducer, AlreadySet, CyclicGraph.
        """
        for var in is_set:
            if var in added.producer:
                raise AlreadySet(f"variable {var!r} already has a value", param=var)
        if not self.producer.keys().isdisjoint(added.producer):
            raise duplicate(next(var for var in added.producer if var in self.producer))
        self._check_cycles(added)

    def _check_cycles(self, added: Addition) -> None:
        """Depth-first from the new primitives that old ones wait for.

        Neither the old primitives nor the new ones have a cycle among themselves, so one that comes
        up now goes from a new primitive to an old one.
        """
        starts: dict[str, None] = {}
        if not self.consumers.keys().isdisjoint(added.producer):
            read = ((var, id) for var, id in added.producer.items() if var in self.consumers)
            starts.update((id, None) for _, id in read)
        if not self.followers.keys().isdisjoint(added.primitives):
            starts.update((id, None) for id in added.primitives if id in self.followers)

        def next_of(id: str) -> Iterator[str]:
            primitive = added.primitives.get(id) or self.primitives[id]
            for var in primitive.writes:
                yield from added.consumers.get(var, ())
                yield from self.consumers.get(var, ())
            yield from added.followers.get(id, ())
            yield from self.followers.get(id, ())

        done: set[str] = set()
        for start in starts:
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
                    task = (added.primitives.get(child) or self.primitives[child]).task
                    raise cyclic(added.tasks.get(task) or self.tasks[task])
                elif child not in done:
                    path[child] = next_of(child)

    def add(self, added: Addition) -> None:
        """Add what has passed `check`. Its lists become the graph's own."""
        self.tasks.update(added.tasks)
        self.primitives.update(added.primitives)
        self.producer.update(added.producer)
        _join(self.consumers, added.consumers)
        _join(self.followers, added.followers)

    def _enter(self, primitive: Primitive, known: int = 0) -> None:
        """Add a primitive with its edges, but for its first `known` reads."""
        self.primitives[primitive.id] = primitive
        for var in primitive.writes:
            self.producer[var] = primitive.id
        for read in primitive.reads[known:]:
            self.consumers.setdefault(read.variable, []).append(primitive.id)
        for before in primitive.after:
            self.followers.setdefault(before, []).append(primitive.id)

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
                self.followers[above].remove(id)
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


def _join(known: dict[str, list[str]], more: Mapping[str, list[str]]) -> None:
    """Append the lists of `more` to the `known` ones."""
    if known.keys().isdisjoint(more):
        known.update(more)
        return
    for key, found in more.items():
        known.setdefault(key, []).extend(found)


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
