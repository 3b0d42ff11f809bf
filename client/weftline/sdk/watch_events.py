"""The events that the server pushes for a submit with `watch`, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from httpx2 import ServerSentEvent

from weftline.contract.errors import WeftlineError


@dataclass(frozen=True, slots=True)
class Submitted:
    """The server has accepted the calls into this session."""

    session_id: str


@dataclass(frozen=True, slots=True)
class VariableText:
    """More text of a variable. The first one has the thoughts before it, if they are apart."""

    variable: str
    text: str
    thoughts: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A variable is ready.

    `facts` are its call's `model`, `prompt_tokens`, `cached_tokens`, `output_tokens` and
    `finish_reason`. Thoughts that are no part of the value are `reasoning_content`, and their
    tokens are counted in `reasoning_tokens`.
    """

    variable: str
    value: Any
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Due:
    """The client step that writes the variable may run, once the client has the step's inputs.

    The step of an agent that calls a tool of the client has the `id`, the `name` and the
    `arguments` of the `call`.
    """

    variable: str
    call: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class VariableFailed:
    """A variable has failed."""

    variable: str
    error: WeftlineError


@dataclass(frozen=True, slots=True)
class GraphEvent:
    """The session's graph. If the submit asked for it, it is the last event."""

    graph: Mapping[str, Any]


Event = Submitted | VariableText | Value | Due | VariableFailed | GraphEvent


def event_of(event: ServerSentEvent) -> Event | None:
    """The event that a server-sent event carries; None for a ping.

    Raises the error of an `error` event.
    """
    if not event.data:
        return None
    data = json.loads(event.data)
    match event.event:
        case "submitted":
            return Submitted(data["session_id"])
        case "part":
            thoughts = data.get("reasoning_content", "")
            return VariableText(data["semantic_var_id"], data["text"], thoughts)
        case "value":
            variable = data.pop("semantic_var_id")
            return Value(variable, data.pop("value"), data)
        case "due":
            return Due(data["semantic_var_id"], data.get("call"))
        case "failed":
            return VariableFailed(data["semantic_var_id"], WeftlineError.from_body(data, 0))
        case "graph":
            return GraphEvent(data)
        case "error":
            raise WeftlineError.from_body(data, 0)
    return None
