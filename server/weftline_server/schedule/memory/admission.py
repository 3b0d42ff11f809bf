"""Which applications may use an engine's KV cache at the same time, as a pure function.

An agent comes back with its whole conversation. When more of them take turns than the cache holds,
each finds its context evicted, and computing everything again leaves time for little else. So an
application is let in as a whole: while there is room for what it will need, or while what is
computed again stays under a tenth of the prefill, or while engines stand idle in the pauses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weftline_server.schedule.memory.applications import Application

# Of the prefill, what may be computed again before nobody more is let in.
MOST_RECOMPUTED = 0.1
# Of the cache, what those that are let in are expected to fill at most.
FILLED = 0.9
# Beyond what fits, nobody is let in to engines that are busy all the time: it would only slow the
# others down. Where they are idle for more than a fifth of it, computing again costs nobody's time.
SATURATED = 0.95
IDLE = 0.8
# Beyond what fits one application is let in at a time: by so many seconds it shows what the last
# one has cost, or what it has brought that some were sent out.
PROBATION_S = 4.0
# Seconds after which an application that waits is let in whatever it costs, one after another.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The KV cache of a model's engines together, and how it has fared.

    `tokens` is its size, `recomputed` the share of the recent prefill that was computed again, None
    where nobody knows, `busy` the share of the recent time in which engines had something to do.
    `changed` are the seconds since one was let in beyond what fits or sent out, `forced` since one
    was for its age.
    """

    tokens: int
    recomputed: float | None = None
    busy: float = 1.0
    changed: float = 1e9
    forced: float = 1e9


@dataclass(frozen=True, slots=True)
class Admission:
    """Who is let in, how many of these `beyond` what fits or `forced` by their age; and who is
    out: it waits again when it comes back."""

    enter: tuple[Application, ...] = ()
    out: tuple[Application, ...] = ()
    beyond: bool = False
    forced: bool = False


def admit(
    waiting: Iterable[Application], inside: Iterable[Application], pool: Pool, now: float
) -> Admission:
    """Who may start now, in the order of arrival; whoever does not fit holds the later ones up."""
    queue = sorted(waiting, key=_arrival)
    inside = sorted(inside, key=_arrival)
    room = pool.tokens - max((one.habits.shared for one in (*inside, *queue)), default=0.0)
    cheap = pool.recomputed is not None and pool.recomputed < MOST_RECOMPUTED
    costly = pool.recomputed is not None and not cheap
    may_change = pool.changed > PROBATION_S
    crowded = sum(one.own for one in inside) > room and costly and pool.busy > SATURATED
    # More of them never need less, so that half of the candidates need not be looked at.
    count = bisect_right(
        range(len(queue)), FILLED * room, key=lambda n: peak((*inside, *queue[: n + 1]))
    )
    enter = queue[: count or (0 if inside else 1)]
    queue = queue[len(enter) :]
    late = queue and now - queue[0].since > PATIENCE_S and pool.forced > PATIENCE_S / 4
    spare = pool.busy < IDLE or (cheap and pool.busy < SATURATED)
    beyond = queue and may_change and spare
    if late or beyond:
        enter.append(queue[0])
    out = _excess(inside, room) if crowded and may_change else []
    return Admission(tuple(enter), tuple(out), beyond=bool(beyond), forced=bool(late))


def _excess(inside: Sequence[Application], room: float) -> list[Application]:
    """The youngest, without whom the others fit as they are now; what they run goes on. The oldest
    stays whatever happens."""
    held = sum(one.own for one in inside)
    out: list[Application] = []
    for one in reversed(inside[1:]):
        if held <= room:
            break
        out.append(one)
        held -= one.own
    return out


def peak(applications: Iterable[Application]) -> float:
    """The most tokens that these will hold at once, if all grow alike and each leaves when it has
    grown to its last size: those that began together are large together."""
    most = held = 0.0
    for count, (growth, own) in enumerate(
        sorted(((one.growth, one.own) for one in applications), reverse=True), start=1
    ):
        held += own
        most = max(most, held + count * growth)
    return most


def _arrival(one: Application) -> float:
    return one.arrival
