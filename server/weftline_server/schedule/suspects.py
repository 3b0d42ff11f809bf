"""Which calls run alone: those beside which engines have died more than once.

One of the calls that an engine ran may have killed it. A call that has seen two deaths runs on an
engine with nothing beside it, so that a third death takes no other call along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weftline_server.schedule.engines.member import Member, Work

SUSPECT_AFTER = 2  # deaths that a call has seen beside others


def is_suspect(work: Work) -> bool:
    """Whether an engine should run this call with nothing beside it."""
    return work.deaths >= SUSPECT_AFTER


def alone(
    queue: Iterable[Work], members: Sequence[Member]
) -> tuple[list[tuple[str, Member]], set[str]]:
    """The suspects to send now, each to an engine that is empty, and the engines that take nothing
    else: those with a suspect, and for each model one that is to become empty.
    """
    closed = {member.name for member in members if any(map(is_suspect, member.ops.works.values()))}
    sent: list[tuple[str, Member]] = []
    models: set[str] = set()
    for work in queue:
        if not is_suspect(work) or work.model in models:
            continue
        models.add(work.model)  # one suspect of a model at a time
        fitting = [member for member in members if _takes(member, work)]
        if not fitting or any(member.name in closed for member in fitting):
            continue
        member = min(fitting, key=lambda one: len(one.ops.works))
        closed.add(member.name)
        if not member.ops.works:
            sent.append((work.op.id, member))
    return sent, closed


def _takes(member: Member, work: Work) -> bool:
    description = member.description
    fits = description is not None and description.model == work.model
    return fits and work.item.kind in member.kinds
