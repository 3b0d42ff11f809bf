"""Puts what the server knows of an op into the hints that the endpoint's own scheduler takes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from weftline_engine.api.ops import Hints, Op

# The turn of a latency call comes less than this after its application, and gets a number above 0.
AHEAD_S = 100.0


class EndpointScheduler(StrEnum):
    """The scheduler behind an endpoint. Hosted endpoints refuse fields that they do not know."""

    NONE = "none"
    VLLM = "vllm"  # needs --scheduling-policy priority, else vLLM answers 400
    SGLANG = "sglang"  # obeys with --enable-priority-scheduling
    DYNAMO = "dynamo"


def fields(scheduler: EndpointScheduler, op: Op) -> dict[str, Any]:
    """Return the fields of a request's body that hold the op's place in the queue, and for Dynamo
    what it will be followed by. docs/engines.md has the table of hints.

    vLLM and SGLang always start the op with the first number, so they get the time of its turn, and
    an old op is overtaken for a bounded time only. In Dynamo a higher number goes first, and its
    router ages ops itself. It gets the seconds by which the op goes ahead of one whose turn is
    AHEAD_S after its application came. It also gets the expected length of the output, and computes
    the beginning of the next prompt behind a turn that may call tools.
    """
    hints = op.hints
    match scheduler:
        case EndpointScheduler.VLLM:
            return {"priority": _place(hints)}
        case EndpointScheduler.SGLANG:  # a higher number goes first
            return {"priority": -_place(hints)}
        case EndpointScheduler.DYNAMO:
            told: dict[str, Any] = {"priority": round(AHEAD_S - (hints.turn - hints.arrival))}
            if hints.expected_output is not None:
                told["osl"] = hints.expected_output
            if op.chat is not None and op.chat.tools:
                told["speculative_prefill"] = True
            return {"nvext": {"agent_hints": told}}
        case EndpointScheduler.NONE:
            return {}


def headers(scheduler: EndpointScheduler, op: Op) -> dict[str, str]:
    """Return the headers that name the op, its span, and its application, for routers that keep a
    session in one place.

    A name that no header can hold is left out.
    """
    found = {"X-Request-Id": f"{op.id}.{op.attempt}"}
    if op.hints.traceparent:
        found["traceparent"] = op.hints.traceparent
    name = op.hints.application
    if scheduler is not EndpointScheduler.NONE and name and name.isascii() and name.isprintable():
        dynamo = scheduler is EndpointScheduler.DYNAMO
        found["X-Dynamo-Session-ID" if dynamo else "X-Session-ID"] = name
    return found


def _place(hints: Hints) -> int:
    """Return the op's place in tenths of a second of waiting. Lower goes first."""
    return round(10 * hints.turn)
