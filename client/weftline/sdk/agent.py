"""One run of an agent, without the network: it builds the request and reads the stream.

The model's turns and the server's tools run in the server. A function of the client that is given
as a tool runs in the client. The stream has an event for each call of it, and the client sets the
call's variable to its result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weftline.contract.arguments import ArgumentReader
from weftline.contract.errors import ConnectionFailed, WeftlineError
from weftline.contract.protocol import SetVariable
from weftline.contract.tools import Function
from weftline.sdk.toolkit import ToolSpec, spec_of

log = logging.getLogger("weftline.agent")

ROUTE = "/v1/chat/completions"
MAX_ERROR_CHARS = 20_000
MOST_BYTES = 8 << 20  # of a result, as in the server

Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]
AgentTool: TypeAlias = Callable[..., Any] | str


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The result of an agent's run.

    `text` is the last answer. `messages` is the whole conversation, as messages of OpenAI's API.
    `finish_reason` is "tool_calls" if the run ended with tool calls that were not run, because it
    had too many turns or called a tool that was not given. `usage` counts tokens, as in OpenAI's
    API.
    """

    text: str
    messages: list[dict[str, Any]]
    finish_reason: str
    usage: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OwnTool:
    """A function of the client as a tool."""

    spec: ToolSpec
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class DueCall:
    """A call that the client has to compute, and the variable of its result."""

    tool: OwnTool
    arguments: str
    variable: str

    def bound(self) -> dict[str, Any]:
        """The arguments by name. Raises ValueError if they are not a JSON object."""
        reader = ArgumentReader()
        reader.feed(self.arguments or "{}")
        if not reader.is_closed:
            raise ValueError("the arguments are no JSON object")
        return reader.value

    def failed(self, error: BaseException) -> SetVariable:
        """A tool's error in the form that the model gets. The log has its traceback."""
        log.warning("tool %r failed", self.tool.spec.function.name, exc_info=error)
        return SetVariable(value=f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])

    @property
    def timed_out(self) -> str:
        """The text that the model gets as the result of a call that takes too long."""
        spec = self.tool.spec
        unknown = "" if spec.effects == "none" else " It may have run."
        return f"the tool ran for more than {spec.timeout_s:g} s and was given up.{unknown}"


class Agent:
    """A run's request, and its result once the stream has ended."""

    def __init__(
        self,
        session: str,
        prompt: Prompt,
        tools: Sequence[AgentTool] | None,
        system: str | None,
        options: Mapping[str, Any],
    ) -> None:
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        before = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = [*before, *map(dict, prompt)]
        self._own = {
            spec.function.name: OwnTool(spec, one)
            for one in tools or ()
            if not isinstance(one, str)
            for spec in (spec_of(one),)
        }
        self._called: set[str] = set()  # a call runs once, even if the stream repeats its event
        self._finish = ""
        self._usage: Mapping[str, Any] = {}
        self._ours: Mapping[str, Any] | None = None
        named = [
            _as_tool(Function(name=one) if isinstance(one, str) else spec_of(one).function)
            for one in tools or ()
        ]
        self.request = {
            **options,
            "messages": self._messages,
            **({"tools": named} if named else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
            "weftline": self._asked(session),
        }

    def _asked(self, session: str) -> dict[str, Any]:
        """The request's own field of our server: the run, and the tools of this process."""
        own = [{"name": name, "effects": one.spec.effects} for name, one in self._own.items()]
        return {
            "session_id": session,
            "name": "agent",
            "run_tools": True,
            "client_tools": own,
        }

    def hear(self, data: str) -> str | DueCall | None:
        """The text or the due call in an event of the stream. Raises the error in the event."""
        if data == "[DONE]":
            return None
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            raise WeftlineError.from_body(chunk, 0)
        self._usage = chunk.get("usage") or self._usage
        ours = chunk.get("weftline") or {}
        if "tool_call" in ours:
            return self._due(ours["tool_call"])
        if "message" in ours:
            self._ours = ours
        for choice in chunk["choices"]:
            self._finish = choice["finish_reason"] or self._finish
            return str(choice["delta"].get("content") or "") or None
        return None

    def _due(self, call: Mapping[str, str]) -> DueCall | None:
        if call["id"] in self._called:
            return None
        self._called.add(call["id"])
        return DueCall(self._own[call["name"]], call["arguments"], call["variable"])

    @property
    def result(self) -> AgentResult:
        """The result of the run. Raises ConnectionFailed if the stream ended before it."""
        if self._ours is None:
            raise ConnectionFailed("the run of the agent broke off: start it again")
        last = dict(self._ours["message"])
        messages = [*self._messages, *self._ours["messages"], last]
        return AgentResult(last["content"] or "", messages, self._finish, self._usage)


def _as_tool(function: Function) -> dict[str, Any]:
    described: dict[str, Any] = {"name": function.name, "description": function.description}
    if function.parameters is not None:
        described["parameters"] = function.parameters
    return {"type": "function", "function": described}


def observation_of(value: object) -> SetVariable:
    """A tool's result in the form that the model gets."""
    try:
        text = value
        if not isinstance(text, str):
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return SetVariable(value=f"the tool's result cannot be sent: it is not JSON: {error}")
    if (size := len(text.encode("utf-8", "replace"))) > MOST_BYTES:
        what = f"it has {size:,} bytes, and {MOST_BYTES:,} are the most"
        return SetVariable(value=f"the tool's result cannot be sent: {what}")
    return SetVariable(value=text)
