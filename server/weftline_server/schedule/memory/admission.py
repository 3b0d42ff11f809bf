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

# No application is admitted beyond the room once this share of the prefill is recomputed.
MOST_RECOMPUTED = 0.1
# The predicted size of applications that grow fills at most this share of the cache. An application
# that will hold no more than its present call has a size that is known, and needs no margin.
FILLED = 0.9
# Beyond the room, no application is admitted while the engines are busy for more than SATURATED of
# the time: another application would only slow the others down. While the engines are busy for less
# than IDLE of the time, recomputing delays no call.
SATURATED = 0.95
IDLE = 0.8
# Where prompts are cheap, as on a GPU, engines are busy with steps that have room for more
# sequences. There an application is admitted beyond the room while the engines compute prompts for
# less than FILLS of the time. Cheap is a context that takes less than PROBATION_S / APART to
# compute. Two such admissions are apart by APART times the seconds that the context of the second
# takes. On a simulated H200 32 agents of 2,720 tokens on a third of their cache ended 134
# applications a minute, 129 with half of the time, 124 without the server, and 140 behind the best
# semaphore.
FILLS = 0.8
APART = 3.0
# Of two applications that wait, the one with half the tokens goes first if it came at most
# SMALLER_S later: the smaller one holds its room for fewer token-seconds. Sizes count within
# bounds, so that no application is overtaken by one that comes 20 s later. LAMPS's mix at 3
# requests a second took an engine 14.9 s each instead of 15.9 s in the order of arrival, and the
# first token came after 3.9 s instead of 8.2 s. With 10 s it was 13.4 s, but large applications
# waited as long as behind a gate that admits what fits.
SMALLER_S = 2.0
LEAST_OWN, MOST_OWN = 64.0, 65_536.0
# Where engines have measured their costs, the token-seconds of the next call take the place of the
# size: an application with half the token-seconds goes first if it came at most SOONER_S later. On
# that mix a request took 11.3 s. With 5 s it was 10.9 s, but large applications waited as long as
# behind a gate that admits what fits. Token-seconds count within bounds, so that no application is
# overtaken by one that comes 30 s later.
SOONER_S = 3.0
LEAST_NEED, MOST_NEED = 32.0, 32_768.0
# Seconds between two admissions beyond the room, and after an eviction. Applications are admitted
# one at a time. With 4 s, 16 drawn sessions on a quarter of the cache ended 8.0 a minute instead of
# 8.7, because less was admitted after an eviction.
PROBATION_S = 1.0
# Seconds after which a waiting application is admitted whatever it costs, one after the other.
PATIENCE_S = 120.0
FORCED_EVERY_S = 30.0
# What an application waits for is in proportion to what its admission costs. Its context takes
# seconds to compute. Its turn comes RELOADS times these seconds later than that of an application
# without a context. An application that is admitted for its age also takes the room of others, that
# compute their contexts again: it waits for RELOADS times the seconds of both, and such admissions
# are as far apart, so that at most a tenth of the time is lost. Without this, a session with 13,221
# tokens, which fills the cache, was computed in 88 s, and evicted for one with 496 tokens that had
# waited for 120 s: 16 coding sessions on half of their cache ended 2.4 a minute instead of 3.9.
RELOADS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPool:
    """The KV cache of all engines of a model, and how it has fared.

    `tokens` is its size. `recomputed` is the share of the recent prefill that had been computed
    before, or None if no engine reports it. `again` counts the tokens that were computed again
    since the admitted applications outgrew the cache. `busy` is the share of the recent time in
    which the engines had work, and `filling` that in which they computed prompts. A prompt token
    takes `fill_s` seconds. `changed` counts the seconds since an application was last admitted
    beyond the room or evicted, and `forced` those since one was last admitted for its age.
    """

    tokens: int
    recomputed: float | None = None
    again: float = 0.0
    busy: float = 1.0
    filling: float = 1.0
    fill_s: float = 0.0
    changed: float = 1e9
    forced: float = 1e9


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
    waiting: Iterable[Application], inside: Iterable[Application], pool: ModelPool, now: float
) -> Admission:
    """Decide which applications may start now.

    Applications are admitted in the order of their turn, the tenants in turn: an application that
    does not fit holds up all later ones.
    """
    inside = tuple(inside)
    queue = _in_turn(sorted(waiting, key=lambda one: _turn(one, pool.fill_s)), inside)
    inside = sorted(inside, key=_arrival)
    room = pool.tokens - max((one.habits.shared for one in (*inside, *queue)), default=0.0)
    cheap = pool.recomputed is not None and pool.recomputed < MOST_RECOMPUTED
    decodes = _decodes(pool, inside)
    excess = sum(one.own for one in inside) - room
    # The peak never falls when an application is added, so a binary search finds the count.
    count = bisect_right(range(len(queue)), room, key=lambda n: peak((*inside, *queue[: n + 1])))
    enter = queue[: count or (0 if inside else 1)]
    queue = queue[len(enter) :]
    # Not the first in turn: where a tenant's short sessions keep coming, their turn may always be
    # before that of another tenant, which has more sessions inside.
    late = [one for one in queue if _is_late(one, inside, room, pool, now)]
    oldest = min(late, key=lambda one: one.since, default=None)
    # Beyond the predicted peak, the first that fits beside what the others hold now.
    spare = pool.busy < IDLE or (cheap and pool.busy < SATURATED) or decodes
    held = 0.0 if decodes else sum(one.own for one in (*inside, *enter))
    fits = next((one for one in queue if held + one.own <= room), None)
    beyond = fits is not None and spare and pool.changed > _probation_s(fits, pool, decodes)
    # Where some applications leave, their contexts lose about the excess, once. Where all
    # applications stay, their contexts lose the excess in each of their turns. So all applications
    # stay until these losses have cost as much.
    out = _excess(inside, room) if 0.0 < excess < pool.again and not decodes else []
    if oldest is not None:
        enter.append(oldest)
        if pool.recomputed is not None:  # it takes the place of others, or all would slow down
            out = _excess(inside, room - oldest.own)
    elif beyond and fits is not None:
        enter.append(fits)
    return Admission(
        tuple(enter),
        tuple(out),
        beyond=beyond,
        forced=oldest is not None,
        crowded=excess > 0.0 and not out,
    )


def _decodes(pool: ModelPool, inside: Sequence[Application]) -> bool:
    """Whether the engines mostly decode, and a context costs them little to compute again.

    Where calls stop for tools, each pause gives its room up by measured costs, and nobody is
    admitted beyond that: on LAMPS's mix at 4 requests a second a request took 14.2 s instead of
    13.4 s.
    """
    if pool.recomputed is None or pool.filling >= FILLS:
        return False
    if any(one.habits.released is not None for one in inside):
        return False
    mean_s = pool.fill_s * sum(one.own for one in inside) / max(1, len(inside))
    return APART * mean_s < PROBATION_S


def _probation_s(one: Application, pool: ModelPool, decodes: bool) -> float:
    """The seconds between an admission beyond the room and that of this application."""
    return min(PROBATION_S, APART * pool.fill_s * one.own) if decodes else PROBATION_S


def _is_late(
    one: Application, inside: Sequence[Application], room: float, pool: ModelPool, now: float
) -> bool:
    """Whether the application has waited long enough to be admitted in the place of others."""
    waited = now - one.since
    most = min(waited, pool.forced) / RELOADS  # the seconds that the admission may cost
    if waited <= PATIENCE_S or pool.forced <= FORCED_EVERY_S or most <= pool.fill_s * one.own:
        return False
    leave = sum(other.own for other in _excess(inside, room - one.own))
    return most > pool.fill_s * (one.own + leave)


def _excess(inside: Sequence[Application], room: float) -> list[Application]:
    """Return the youngest applications whose removal makes the others fit at their current size.

    The running calls of the removed applications go on. The oldest application always stays.
    """
    held = sum(one.own for one in inside)
    out: list[Application] = []
    for one in reversed(inside[1:]):
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


def needs(inside: Sequence[Application], waiting: Sequence[Application]) -> tuple[int, int]:
    """The tokens that the applications inside will hold at most, and how many more with those that
    wait.
    """
    used, whole = (
        ceil(peak(some) + max((one.habits.shared for one in some), default=0.0))
        for some in (inside, (*inside, *waiting))
    )
    return used, max(0, whole - used)


def _in_turn(queue: list[Application], inside: Iterable[Application]) -> list[Application]:
    """`queue`, sorted by how many applications of its tenant are inside or before each."""
    before = Counter(one.salt for one in inside)
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
