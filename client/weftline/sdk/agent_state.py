"""One run of an agent, without the network: the step that is sent, and what its events say.

The agent is a step of the server's graph, which runs the model's turns and the server's tools. A
function of the program that is given as a tool is a client step: an event says that a call of it is
due, and the client sets the call's variable to its result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from weftline.contract.arguments import ArgumentReader
from weftline.contract.errors import ConnectionFailed, InvalidRequest
from weftline.contract.protocol import (
    Call,
    InOut,
    Message,
    Placeholder,
    Sampling,
    Segment,
    SetVariable,
)
from weftline.contract.sampling import stop_strings
from weftline.contract.steps import AgentStep
from weftline.contract.tools import (
    ClientTool,
    Function,
    NamedFunction,
    NamedTool,
    Tool,
)
from weftline.sdk.toolkit import ToolSpec, spec_of
from weftline.sdk.watch_events import Due, Event, Value, VariableFailed, VariableText

log = logging.getLogger("weftline.agent")

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
    """The step of a run, whose value is the variable `out`, and its result once it has ended."""

    def __init__(
        self,
        out: str,
        prompt: Prompt,
        tools: Sequence[AgentTool] | None,
        system: str | None,
        options: Mapping[str, Any],
    ) -> None:
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        self._messages = [*map(dict, prompt)]
        if system is not None:
            self._messages.insert(0, {"role": "system", "content": system})
        self._own = {
            spec.function.name: OwnTool(spec, one)
            for one in tools or ()
            if not isinstance(one, str)
            for spec in (spec_of(one),)
        }
        self._called: set[str] = set()  # a call runs once, even if the stream repeats its event
        self._result: AgentResult | None = None
        offered = tuple(
            Tool(function=Function(name=one) if isinstance(one, str) else spec_of(one).function)
            for one in tools or ()
        )
        self.step = AgentStep(
            name="agent",
            out=out,
            call=_call(self._messages, offered, options),
            client_tools=tuple(
                ClientTool(name=name, effects=one.spec.effects) for name, one in self._own.items()
            ),
        )

    def hear(self, event: Event) -> str | DueCall | None:
        """The text or the due call in an event. Raises the error of a run that has failed."""
        match event:
            case VariableText(text=text):
                return text
            case Due(variable, call) if call is not None and call["id"] not in self._called:
                self._called.add(call["id"])
                return DueCall(self._own[call["name"]], call["arguments"], variable)
            case VariableFailed(error=error):
                raise error
            case Value(value=text, facts=facts):
                messages = [*self._messages, *facts["messages"]]
                self._result = AgentResult(text, messages, facts["finish_reason"], facts["usage"])
        return None

    @property
    def result(self) -> AgentResult:
        """The result of the run. Raises ConnectionFailed if the stream ended before it."""
        if self._result is None:
            raise ConnectionFailed("the run of the agent broke off: start it again")
        return self._result


_OF_SAMPLING = frozenset(one.name for one in fields(Sampling)) - {"logprobs"}
_OF_CALL = frozenset(
    {"model", "criteria", "priority", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"}
)


def _call(
    messages: Sequence[Mapping[str, Any]], tools: tuple[Tool, ...], options: Mapping[str, Any]
) -> Call:
    """The first turn of an agent. Raises InvalidRequest for an option that agents do not have."""
    given = dict(options)
    if (limit := given.pop("max_completion_tokens", None)) is not None:  # OpenAI's newer name
        given["max_tokens"] = limit
    for name in given:
        if name not in _OF_SAMPLING | _OF_CALL:
            raise InvalidRequest(
                f"an agent has no option {name!r}: give a field of Sampling, such as max_tokens or "
                f"constraint, or one of {', '.join(sorted(_OF_CALL))}",
                param=name,
            )
    given["stop"] = stop_strings(given.get("stop"))
    if isinstance(choice := given.get("tool_choice"), Mapping):
        named = NamedFunction(name=choice["function"]["name"])
        given["tool_choice"] = NamedTool(function=named)
    # The server reads a message of OpenAI's API where an input stands among messages. An input for
    # each, because prompts share a prefix from input to input.
    said = [
        Placeholder(name=f"message_{number}", in_out=InOut.IN, value=one)
        for number, one in enumerate(messages)
    ]
    sampling = Sampling(**{name: given.pop(name) for name in _OF_SAMPLING & given.keys()})
    answer = Message(role="assistant", content=(Segment(output="answer"),))
    return Call(
        name="agent",
        prompt=(*(Segment(input=one.name) for one in said), answer),
        placeholders=(*said, Placeholder(name="answer", in_out=InOut.OUT, sampling=sampling)),
        tools=tools,
        **given,
    )


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
