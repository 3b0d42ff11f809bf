"""What an endpoint's own scheduler is told about an op, in the words of that scheduler."""

from __future__ import annotations

from enum import StrEnum
from math import log2
from typing import Any

from weftline_engine.api.ops import AGING_S, MOST_WORK, Hints


class Scheduler(StrEnum):
    """The scheduler behind an endpoint. A hosted endpoint refuses what it does not know."""

    NONE = "none"
    VLLM = "vllm"  # needs --scheduling-policy priority, else vLLM answers 400
    SGLANG = "sglang"  # obeys with --enable-priority-scheduling
    DYNAMO = "dynamo"


def fields(scheduler: Scheduler, hints: Hints) -> dict[str, Any]:
    """Return the fields of a request's body that hold the op's place in the queue.

    vLLM and SGLang start strictly the first, so the number holds the time of arrival: an old op is
    overtaken for a bounded time. A higher number goes first at Dynamo, whose router lets ops age
    itself: it gets the seconds by which an op goes ahead of one with the most work.
    """
    match scheduler:
        case Scheduler.VLLM:
            return {"priority": _place(hints)}
        case Scheduler.SGLANG:  # a higher number goes first
            return {"priority": -_place(hints)}
        case Scheduler.DYNAMO:
            ahead = round(AGING_S * (log2(MOST_WORK) - hints.age(0.0)))
            return {"nvext": {"agent_hints": {"priority": ahead}}}
        case Scheduler.NONE:
            return {}


def headers(scheduler: Scheduler, hints: Hints) -> dict[str, str]:
    """Return the headers that name the application, for routers that keep a session in one place.

    A name that no header can hold is left out.
    """
    name = hints.application
    if scheduler is Scheduler.NONE or not name or not (name.isascii() and name.isprintable()):
        return {}
    return {"X-Dynamo-Session-ID" if scheduler is Scheduler.DYNAMO else "X-Session-ID": name}


def _place(hints: Hints) -> int:
    """Return the op's place in tenths of a second of waiting. Lower goes first."""
    return round(10 * AGING_S * hints.age(hints.arrival))
