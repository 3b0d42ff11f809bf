"""Which applications may use a model's KV cache at the same time, as a pure function.

An agent comes back with its whole conversation. When the conversations of all agents exceed the
cache, each agent finds its context evicted, and the engines spend most of their time computing
contexts again. So an application is admitted as a whole: while there is room for its predicted
size, while less than a tenth of the prefill is recomputed, or while engines are idle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, log2

from weftline_server.schedule.memory.applications import Application
from weftline_server.schedule.memory.constants import (
    APART,
    FILLED,
    FILLS,
    FORCED_EVERY_S,
    IDLE,
    LEAST_NEED,
    LEAST_OWN,
    MOST_NEED,
    MOST_OWN,
    MOST_RECOMPUTED,
    PATIENCE_S,
    PROBATION_S,
    RELOADS,
    SATURATED,
    SMALLER_S,
    SOONER_S,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPool:
    """The KV cache of all engines of a model, and how it has fared.

    `tokens` is its size. `recomputed` is the share of the recent prefill that had been computed
    before, or None if no engine reports it. `again` counts the tokens that were computed again
    since the admitted applications outgrew the cache. `busy` is the share of the recent time in
    which the engines had work, and `filling` that in which they computed prompts. A prompt token
    takes `fill_s` seconds. `changed` counts the seconds since an application was last admitted
    beyond the room or evicted, and `forced` those since one was last admitted for its age.
    `entering` says that the context of one that was admitted is not computed yet.
    """

    tokens: int
    recomputed: float | None = None
    again: float = 0.0
    busy: float = 1.0
    filling: float = 1.0
    fill_s: float = 0.0
    changed: float = 1e9
    forced: float = 1e9
    entering: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """Applications to admit (`enter`) and to evict (`out`); evicted ones wait when they come back.

    `beyond` and `forced` flag an admission beyond the room and one for age. `crowded` says that
    the admitted ones have outgrown the cache, and stay.
    """

    enter: tuple[Application, ...] = ()
    out: tuple[Application, ...] = ()
    beyond: bool = False
    forced: bool = False
    crowded: bool = False


def admit(
    waiting: Iterable[Application], admitted: Iterable[Application], pool: ModelPool, now: float
) -> Admission:
    """Decide which applications may start now, by these rules.

    1. Turns: what waits longer and needs less room for less time goes first, the tenants in turn.
    2. Room: applications enter in their order while the predicted peak of all fits into the cache,
       or their present sizes where contexts are cheap to compute again. One that does not fit holds
       up all later ones. Into an empty cache one enters in any case.
    3. Age: one that has waited long enough takes the place of the youngest.
    4. Beyond the room: one enters whose present size fits, where the engines have time to spare or
       mostly decode.
    5. Crowd: where the admitted ones have outgrown the cache, and have lost as much by it as they
       would by leaving, the youngest leave: one by one where contexts are cheap.
    """
    admitted = tuple(admitted)
    queue = _in_turn(sorted(waiting, key=lambda one: _turn(one, pool.fill_s)), admitted)
    admitted = sorted(admitted, key=_arrival)
    room = pool.tokens - max((one.habits.shared for one in (*admitted, *queue)), default=0.0)
    cheap = _is_cheap(pool, (*admitted, *queue))
    decodes = cheap and pool.filling < FILLS
    count = _fitting(queue, admitted, room, cheap)
    enter, queue = queue[:count], queue[count:]
    excess = sum(one.own for one in admitted) - room
    # Where some leave, their contexts lose about the excess, once. Where all stay, their contexts
    # lose it in each of their turns. So all stay until these losses have cost as much.
    out = _excess(admitted, room) if 0.0 < excess < pool.again and not decodes else []
    if cheap and out:  # the time for prompts tells only later what one less has changed
        out = out[:1] if pool.changed > _probation_s(out[0], pool, cheap) else []
    late = _late(queue, admitted, room, pool, now)
    more = _beyond(queue, (*admitted, *enter), room, pool, decodes)
    if late is not None:
        enter.append(late)
        if pool.recomputed is not None:  # it takes the place of others, or all would slow down
            out = _excess(admitted, room - late.own)
    elif more is not None:
        enter.append(more)
    return Admission(
        tuple(enter),
        tuple(out),
        beyond=more is not None,
        forced=late is not None,
        crowded=excess > 0.0 and not out,
    )


def _fitting(
    queue: list[Application], admitted: Sequence[Application], room: float, cheap: bool
) -> int:
    """How many of the queue fit beside those admitted: at the peak of all, or as large as they are
    now where their contexts are `cheap` to compute again."""

    # Neither falls when an application is added. In most rounds none fits, so the search
    # doubles its bound until it is too large, and halves it from there.
    def need(last: int) -> float:
        some = (*admitted, *queue[: last + 1])
        return sum(one.own for one in some) if cheap else peak(some)

    bound = 1
    while bound <= len(queue) and need(bound - 1) <= room:
        bound *= 2
    some = range(bound // 2, min(bound, len(queue)))
    count = bound // 2 + bisect_right(some, room, key=need)
    return count or (0 if admitted else min(1, len(queue)))


def _late(
    queue: list[Application],
    admitted: Sequence[Application],
    room: float,
    pool: ModelPool,
    now: float,
) -> Application | None:
    """The application that has waited longest, if any has waited long enough.

    The longest wait counts, and not the first turn: where a tenant's short sessions keep coming,
    their turn may always be before that of another tenant, which has more sessions admitted.
    """
    late = (one for one in queue if _is_late(one, admitted, room, pool, now))
    return min(late, key=lambda one: one.since, default=None)


def _beyond(
    queue: list[Application],
    admitted: Sequence[Application],
    room: float,
    pool: ModelPool,
    decodes: bool,
) -> Application | None:
    """The first application that fits beside what the others hold now, if the engines have time.

    Engines that mostly decode (`decodes`) have room for any application.
    """
    held = 0.0 if decodes else sum(one.own for one in admitted)
    fits = next((one for one in queue if held + one.own <= room), None)
    cheap = pool.recomputed is not None and pool.recomputed < MOST_RECOMPUTED
    decoding = pool.filling < FILLS and not pool.entering
    spare = pool.busy < IDLE or (cheap and (pool.busy < SATURATED or decoding)) or decodes
    if fits is None or not spare or pool.changed <= _probation_s(fits, pool, decodes):
        return None
    return fits


def _is_cheap(pool: ModelPool, some: Sequence[Application]) -> bool:
    """Whether the context of each of these applications costs little to compute again at its end.

    Where calls stop for tools, each pause gives its room up by measured costs, and nobody is
    admitted beyond that: on LAMPS's mix at 4 requests a second a request took 14.2 s instead of
    13.4 s.
    """
    if pool.recomputed is None or not pool.fill_s:
        return False
    if any(one.habits.released is not None for one in some):
        return False
    largest = max((one.own + one.growth for one in some), default=0.0)
    return APART * pool.fill_s * largest < PROBATION_S


def _probation_s(one: Application, pool: ModelPool, decodes: bool) -> float:
    """The seconds between an admission beyond the room and that of this application."""
    return min(PROBATION_S, APART * pool.fill_s * one.own) if decodes else PROBATION_S


def _is_late(
    one: Application, admitted: Sequence[Application], room: float, pool: ModelPool, now: float
) -> bool:
    """Whether the application has waited long enough to be admitted in the place of others."""
    waited = now - one.since
    most = min(waited, pool.forced) / RELOADS  # the seconds that the admission may cost
    if waited <= PATIENCE_S or pool.forced <= FORCED_EVERY_S or most <= pool.fill_s * one.own:
        return False
    leave = sum(other.own for other in _excess(admitted, room - one.own))
    return most > pool.fill_s * (one.own + leave)


def _excess(admitted: Sequence[Application], room: float) -> list[Application]:
    """Return the youngest applications whose removal makes the others fit at their current size.

    The running calls of the removed applications go on. The oldest application always stays.
    """
    held = sum(one.own for one in admitted)
    out: list[Application] = []
    for one in reversed(admitted[1:]):
        if held <= room:
            break
        out.append(one)
        held -= one.own
    return out


def peak(applications: Iterable[Application]) -> float:
    """Return the most tokens that these applications will hold at once.

    The sum assumes that all applications grow at the same rate, and that each leaves at its
    predicted final size. So applications that began together are large together. Applications that
    grow from call to call count with a margin, as they may fill FILLED of the cache. The tokens
    that a call has not generated yet are growth, too.
    """
    most = held = count = 0.0
    sizes = (
        (one.growth + one.newest.left, one.own - one.newest.left, 1 / FILLED if one.growth else 1.0)
        for one in applications
    )
    for growth, own, margin in sorted(sizes, reverse=True):
        held += margin * own
        count += margin
        most = max(most, held + count * growth)
    return most


def needs(admitted: Sequence[Application], waiting: Sequence[Application]) -> tuple[int, int]:
    """The tokens that the admitted applications will hold at most, and how many more with those
    that wait.
    """
    used, whole = (
        ceil(peak(some) + max((one.habits.shared for one in some), default=0.0))
        for some in (admitted, (*admitted, *waiting))
    )
    return used, max(0, whole - used)


def _in_turn(queue: list[Application], admitted: Iterable[Application]) -> list[Application]:
    """`queue`, sorted by how many applications of its tenant are admitted or before each."""
    before = Counter(one.salt for one in admitted)
    places: list[int] = []
    for one in queue:
        places.append(before[one.salt])
        before[one.salt] += 1
    if len(before) < 2:
        return queue
    return [queue[at] for at in sorted(range(len(queue)), key=lambda at: (places[at], at))]


def _arrival(one: Application) -> float:
    return one.arrival


def _turn(one: Application, fill_s: float) -> float:
    """The least goes first: what waits longer, and what needs less room for less time."""
    reached = one.since + RELOADS * fill_s * one.own
    if (need := one.newest.need) is not None:
        return reached + SOONER_S * log2(min(max(need, LEAST_NEED), MOST_NEED))
    return reached + SMALLER_S * log2(min(max(one.own, LEAST_OWN), MOST_OWN))
