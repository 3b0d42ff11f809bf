"""A placement round: take the queue in order, and give each call the best engine with room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType

from weftline_engine.api import PATIENCE_S
from weftline_server.graph.engine_score import EngineScore
from weftline_server.schedule.placement.home import home
from weftline_server.schedule.placement.round_data import (
    Class,
    EngineLoad,
    Placement,
    Queued,
    common,
)
from weftline_server.schedule.placement.scores import (
    COST,
    KEPT_FREE,
    ORDER,
    Candidate,
    Cost,
    KeptFree,
)
from weftline_server.schedule.placement.waiting_lines import WaitingLines

# Calls of one class that found no room, after which a round looks at no more of that class. Behind
# them may be a smaller call, or one whose prefix is there, which then waits for another round.
MOST_MISSED = 256
_NO_ROOMS: Mapping[int, float] = {}
MOST_SHOWN = 4  # engines whose terms are kept with a call: about 150 bytes each


class _Replicas:
    """The engines of one model while a placement round adds calls to them."""

    def __init__(self) -> None:
        self.engines: list[Candidate] = []
        self.free = 0  # places
        self.mixes = False  # calls with a step bound are beside throughput calls or groups
        self.meets = False  # other servers place calls on these engines, too
        self.reserved = False  # an engine takes nothing more for a call that has waited too long
        self._fresh: set[str] = set()
        # By class, whether the call is late, and its tenant if that has strict calls: the most room
        # of an engine, and the room of each.
        self._rooms: dict[tuple[Class, bool, str | None], tuple[float, dict[int, float]]] = {}
        self._strict: set[str] = set()  # tenants with strict calls
        # Of the last `best`: each engine with room, and those without. The least comes first: of
        # engines that cost the same the less busy one, then the first by name.
        self._seen: tuple[list[tuple[float, int, int]], list[Candidate]] = [], []

    def add(self, engine: Candidate) -> None:
        self.engines.append(engine)
        self.free += max(0, engine.load.max_running - engine.running)
        self._fresh.update(engine.fresh)
        self._strict.update(engine.strict)

    def rooms(self, item: Queued, late: bool) -> Mapping[int, float]:
        """Return the room for a call like `item` on each engine that takes its kind, by index.

        The result is empty where `item` fits nowhere. So most calls of a long queue are passed over
        without a look at every engine.
        """
        most, rooms = self._rooms_of(item, late)
        if item.tokens <= most:
            return rooms
        # Optimistic bound: assume the roomiest engine holds every shared prefix.
        return rooms if item.tokens - common(item.prefixes, self._fresh) <= most else _NO_ROOMS

    def _rooms_of(self, item: Queued, late: bool) -> tuple[float, dict[int, float]]:
        key = item.of, late, item.tenant if item.tenant in self._strict else None
        if (known := self._rooms.get(key)) is not None:
            return known
        rooms = {
            index: engine.room(*key)
            for index, engine in enumerate(self.engines)
            if item.kind in engine.load.kinds
        }
        self._rooms[key] = found = max(rooms.values(), default=-inf), rooms
        return found

    def best(self, item: Queued, cost: Cost, late: bool, waits: bool) -> int | None:
        """Return the index of the engine with room where `item` costs least, or None.

        None means that no engine has room, or that `item` should wait (where it `waits`): an engine
        without room has more of its prefix and costs less.
        """
        rooms = self.rooms(item, late)
        if not rooms:
            return None
        batches = item.throughput or item.grouped
        full: list[Candidate] = []
        costs: list[tuple[float, int, int]] = []
        self._seen = costs, full
        tokens, engines = item.tokens, self.engines
        for index, room in rooms.items():
            engine = engines[index]
            if tokens > room and tokens - common(item.prefixes, engine.fresh) > room:
                full.append(engine)
                continue
            costs.append((cost(engine, item, batches), engine.running, index))
        if not costs:
            return None
        costs.sort()
        least, _, best = costs[0]
        if self.meets and (key := self.engines[best].first_missing(item)) is not None:
            best = self._home(key, item)
            least = cost(engines[best], item, batches)
        if not (waits and full and (item.prefixes or item.meanings)):
            return best
        missing = self.engines[best].missing(item)
        better = [one for one in full if cost(one, item, batches) < least]
        return None if any(one.missing(item) < missing for one in better) else best

    def _home(self, key: str, item: Queued) -> int:
        """The index of the engine where all servers compute this prefix, among those that were
        seen. An engine that lacks more of the call's prompt than the cheapest one is no home.
        """
        costs, engines = self._seen[0], self.engines
        missing = engines[costs[0][2]].missing(item)
        places = [at for at, one in enumerate(costs) if engines[one[2]].missing(item) <= missing]
        found = home(key, ((costs[at][0], engines[costs[at][2]].load.name) for at in places))
        costs.insert(0, costs.pop(places[found]))
        return costs[0][2]

    def why(self, item: Queued) -> tuple[EngineScore, ...]:
        """What decided for the engine that was `best` for `item` just now.

        The terms of `best` come first, then those of the next cheapest engines, then of engines
        without room.
        """
        costs, full = self._seen
        engines = self.engines
        found = [engines[at].terms(item, cost, True) for cost, _, at in costs[:MOST_SHOWN]]
        for one in full[: MOST_SHOWN - len(found)]:
            cost = one.cost(item, item.throughput or item.grouped)
            found.append(one.terms(item, cost, False))
        return tuple(found)

    def place(self, index: int, item: Queued) -> None:
        """Add a call that was placed on engine `index`."""
        engine = self.engines[index]
        batched = engine.batches
        engine.place(item)
        self.free -= 1
        self._fresh.update(hash for hash, _ in item.prefixes)
        self._strict.update(engine.strict)
        if self.mixes and not batched and engine.batches:
            self.keep_free()
        self._changed(index)

    def keep_free(self) -> None:
        """Keep the last engines without throughput calls and groups free of these."""
        free = [one for one in self.engines if not one.batches]
        keep = len(self.engines) > 1 and len(free) <= max(1, len(self.engines) // KEPT_FREE)
        for one in self.engines:
            if one.kept in (KeptFree.NOTHING, KeptFree.BATCHES):
                one.keep(KeptFree.BATCHES if keep and not one.batches else KeptFree.NOTHING)

    def reserve(self, item: Queued) -> None:
        """Let one engine run empty for a call that has waited too long and fits nowhere.

        Without this, smaller calls would take the room as soon as it comes free. Engines are taken
        from the others one at a time.
        """
        _, rooms = self._rooms_of(item, late=True)
        index = max(rooms, key=rooms.__getitem__, default=None)
        if index is None or rooms[index] == -inf:
            return
        self.reserved = True
        self.engines[index].keep_for(item)
        self._changed(index)

    def _changed(self, index: int) -> None:
        for key, (_, rooms) in self._rooms.items():
            if index in rooms:
                rooms[index] = self.engines[index].room(*key)
                self._rooms[key] = max(rooms.values()), rooms


def place(
    queue: Iterable[Queued],
    engines: Sequence[EngineLoad],
    policy: str,
    now: float,
    served: Mapping[str, float] = MappingProxyType({}),
) -> list[Placement]:
    """Place the calls that fit now, the most urgent first; a call that does not fit blocks no other
    call.

    `policy` is one of POLICIES; `now` is in seconds of the monotonic clock. Tenants take turns by
    what they were `served` so far.
    """
    lines = WaitingLines(ORDER[policy])
    for item in queue:
        lines.add(item)
    return place_lines(lines, engines, policy, now, served)


def place_lines(
    lines: WaitingLines,
    engines: Sequence[EngineLoad],
    policy: str,
    now: float,
    served: Mapping[str, float],
) -> list[Placement]:
    """The same for calls that are in order already. It costs what can be placed, and not what
    waits."""
    by_model: dict[str, _Replicas] = {}
    for load in sorted(engines, key=lambda load: load.name):
        if load.model not in by_model:
            by_model[load.model] = _Replicas()
        by_model[load.model].add(Candidate(load))
    placements: list[Placement] = []
    for model, replicas in by_model.items():
        if policy == "app":
            replicas.meets = any(one.load.servers > 1 for one in replicas.engines)
            bounded = any(one.bounded for one in replicas.engines)
            replicas.mixes = bounded or lines.has_bounded(model)
            if replicas.mixes:
                replicas.keep_free()
        full: set[Class] = set()
        waiting = lines.in_turn(model, served, full)
        placements += _placed(waiting, replicas, policy, now, full)
    return placements


def _placed(
    waiting: Iterable[Queued], replicas: _Replicas, policy: str, now: float, full: set[Class]
) -> Iterator[Placement]:
    """Place the calls for one model, and note the classes that found no room."""
    cost, missed = COST[policy], Counter[Class]()
    for item in waiting if replicas.free > 0 else ():
        late = now - item.queued > PATIENCE_S
        best = replicas.best(item, cost, late, waits=policy == "app" and not late)
        if best is not None:
            why = replicas.why(item) if policy == "app" else ()
            replicas.place(best, item)
            yield Placement(item.id, replicas.engines[best].load.name, why)
            if replicas.free <= 0:
                return
            continue
        if late and not replicas.reserved and not item.open:
            replicas.reserve(item)
        missed[item.of] += 1
        if missed[item.of] >= MOST_MISSED:
            full.add(item.of)
