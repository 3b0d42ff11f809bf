"""Task groups (Parrot section 5.2): tasks that a reader waits for and that should end together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from weftline_server.graph.graph import Graph
from weftline_server.passes.depth import MOST_DEPTH
from weftline_server.passes.plan import MOST_EDGES, Changed, Findings, Plan

# A task with more readers than these is an input that they have in common, and no link of a stage.
MOST_READERS = 32
# Of the answers that have an input in common, this many are compared with a new one.
MOST_COMPARED = 4


def groups(graph: Graph, plan: Plan, changed: Changed) -> Findings:
    """Tasks of equal depth under one consumer are a group. So are tasks of equal depth further up,
    where each is read by another member, such as the reviewers whose reviews one reviser each
    reads. A lone producer is in no group. A list longer than MOST_EDGES goes through an engine in
    many batches, so its producers are no group. A task with several consumers belongs to the group
    of the first consumer that makes one, and the nearest reader goes before those behind it. The
    group stays when more readers come that read the same.
    """
    tasks = dict.fromkeys([graph.primitives[id].task for id in changed])
    stages = _Stages(graph, plan, tasks)
    for task in tasks:
        for level, members in stages.read_by(task).items():
            stages.enter(f"{task}@{level}", members)
    for task in stages.below(tasks):
        for members in stages.read_by(task).values():
            stages.climb(task, members)
        stages.compare(task)
    return Findings(group=stages.found)


class _Stages:
    """The stages above the readers of a graph; `found` has their names by primitive."""

    def __init__(self, graph: Graph, plan: Plan, changed: Collection[str]) -> None:
        self.found: dict[str, str] = {}
        self._graph = graph
        self._plan = plan
        self._changed = changed
        self._levels: dict[str, dict[int, list[str]]] = {}  # by reader
        self._links: dict[str, bool] = {}
        self._lanes: dict[str, dict[int, str]] = {}  # by sink
        self._climbed: set[tuple[str, ...]] = set()

    def read_by(self, task: str) -> dict[int, list[str]]:
        """The producers of the task by their depth, where several have the same."""
        if task not in self._levels:
            self._levels[task] = self._read_by(task)
        return self._levels[task]

    def _read_by(self, task: str) -> dict[int, list[str]]:
        graph = self._graph
        first, *more = graph.tasks[task].primitives
        waits = graph.primitives[first.id]
        if not more and len(waits.reads) + len(waits.after) < 2:
            return {}  # most tasks wait for one other at most
        if any(len(graph.primitives[one.id].reads) > MOST_EDGES for one in (first, *more)):
            return {}
        return self._several(graph.tasks_above(task))

    def _several(self, tasks: Iterable[str]) -> dict[int, list[str]]:
        depths: dict[int, list[str]] = {}
        for one in tasks:
            depths.setdefault(self._depth(one), []).append(one)
        return {
            depth: some
            for depth, some in depths.items()
            if len(some) > 1 and not self._is_known(some)
        }

    def _is_known(self, members: Sequence[str]) -> bool:
        """Whether an earlier reader has made the members a group, and so the stages above them.

        Each review of a team reads the same files, for example. Of a team of 16 files whose client
        sends call by call, the plans took 90 ms with a new search above the files for each review.
        """
        graph, known = self._graph, self._plan.group
        names = {known.get(graph.tasks[one].primitives[0].id) for one in members}
        if len(names) > 1 or None in names:
            return False
        return not any(one in self._changed for one in members)

    def _depth(self, task: str) -> int:
        return self._plan.depth.get(self._graph.tasks[task].primitives[0].id, 0)

    def enter(self, name: str, members: Iterable[str]) -> None:
        """The members are a group, but for those that are in another one."""
        for member in members:
            for primitive in self._graph.tasks[member].primitives:
                self.found.setdefault(primitive.id, name)

    def below(self, tasks: Iterable[str]) -> Collection[str]:
        """The tasks and all that wait for them, as far as depths are told apart."""
        seen = dict.fromkeys(tasks)
        last = list(seen)
        for _ in range(MOST_DEPTH):
            found = dict.fromkeys(one for task in last for one in self._readers(task))
            last = [one for one in found if one not in seen]
            seen.update(dict.fromkeys(last))
        return seen

    def _readers(self, task: str, most: int | None = None) -> Collection[str]:
        """The tasks that wait for the task directly, or those of its newest edges, the newest first
        in both."""
        return dict.fromkeys(one for one in islice(self._edges(task), most) if one != task)

    def _edges(self, task: str) -> Iterator[str]:
        """The task at the other end of each edge from the task's primitives."""
        graph = self._graph
        for made in graph.tasks[task].primitives:
            for id in reversed([*graph.downstream(made.id)]):
                yield graph.primitives[id].task

    def _only_reader(self, task: str) -> str | None:
        """The one task that waits for the task; None of several, and of none."""
        found = None
        for reader in self._edges(task):
            if reader not in (found, task):
                if found is not None:
                    return None
                found = reader
        return found

    def climb(self, reader: str, members: Sequence[str]) -> None:
        """Make groups of the tasks above `members` that are in none of a nearer reader."""
        above = tuple(members)
        for _ in range(MOST_DEPTH):
            if len(above) > MOST_EDGES or above in self._climbed:
                return
            self._climbed.add(above)
            above = tuple(dict.fromkeys(one for member in above for one in self._links_of(member)))
            for level, stage in self._several(above).items():
                self.enter(f"{reader}@{level}", stage)
            if len(above) < 2:
                return

    def _links_of(self, task: str) -> list[str]:
        """The tasks above that no reader makes members of a group by itself."""
        return [one for one in self._graph.tasks_above(task) if self._is_link(one)]

    def _is_link(self, task: str) -> bool:
        if task not in self._links:
            readers, depth = self._readers(task, MOST_READERS + 1), self._depth(task)
            is_common = len(readers) > MOST_READERS
            self._links[task] = not is_common and not any(
                depth in self.read_by(reader) for reader in readers
            )
        return self._links[task]

    def compare(self, sink: str) -> None:
        """The client reads several answers that have an input in common, such as the files that
        each reviser rewrites: what is above them is one stage, too. One answer with as many stages
        is enough: those before it have been compared with it."""
        if self._is_read(sink):
            return
        above = self._graph.tasks_above(sink)
        own = self._lane(sink) if len(above) > 1 else {}
        if not own:
            return
        compared, alone = {sink}, set(own)
        for shared in above:
            for other in self._readers(shared, MOST_COMPARED):
                if other in compared or self._is_read(other):
                    continue
                compared.add(other)
                for level, task in self._lane(other).items():
                    if own.get(level, task) != task:
                        self.enter(f"{shared}@{level}", (task, own[level]))
                        alone.discard(level)
                if not alone:
                    return

    def _is_read(self, task: str) -> bool:
        return any(reader != task for reader in self._edges(task))

    def _lane(self, sink: str) -> dict[int, str]:
        """By depth, what is above an answer and is read for that answer alone."""
        if sink not in self._lanes:
            self._lanes[sink] = self._lane_of(sink)
        return self._lanes[sink]

    def _lane_of(self, sink: str) -> dict[int, str]:
        found: dict[int, str] = {}
        last = [sink]
        for _ in range(MOST_DEPTH):  # tasks with several outputs may wait for each other in turn
            above = dict.fromkeys(one for task in last for one in self._graph.tasks_above(task))
            last = [one for one in above if self._only_reader(one) is not None]
            for one in last:
                found.setdefault(self._depth(one), one)
        return found
