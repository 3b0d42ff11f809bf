"""An agent: a model writes turns, and the server runs the tools that they call, until one calls
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call
from weftline.contract.steps import AgentStep
from weftline.contract.tools import ClientTool, ServedTool
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing, Growth
from weftline_server.graph.primitive import Read, Task
from weftline_server.lowering.control.base import (
    GROWS,
    ControlBody,
    Variables,
    primitive,
    reads_of,
    rewired,
    task_of,
    waits_for,
)
from weftline_server.lowering.control.body import renamed_call
from weftline_server.lowering.kinds.tool import RunTool, served_tool, starts_early, tool_of
from weftline_server.lowering.kinds.turn import AgentSetup, AnswerBody, begun, first_turn, turn_of
from weftline_server.lowering.step import Field, Kinds, Rename, Resolver, Says, StepKind, Tools

_FIRST_TURN = {
    "name": "ask",
    "prompt": [
        {"role": "user", "content": [{"text": "What does the kettle cost?"}]},
        {"role": "assistant", "content": [{"output": "answer"}]},
    ],
    "placeholders": [{"name": "answer", "in_out": "out"}],
}


class AgentKind(StepKind[AgentStep]):
    """Kind `agent` begins the first turn, and the text of the last answer stands behind `answer`.

    Each turn grows the next one; see `weftline_server.lowering.kinds.turn`. A chat completion with
    `run_tools` is such a step.
    """

    traits = replace(GROWS, generates=True)
    is_call = True
    says: ClassVar[Says] = {
        "call": Field(
            "The first turn: a prompt of messages, the last of which is the output.",
            _FIRST_TURN,
        ),
        "client_tools": Field("Tools of the call that the client computes.", []),
        "code_tool": Field(
            "The tool of the server that takes the blocks of Python in the answers.", "python"
        ),
        "most": Field("The most turns.", 16),
        "served": Field("Who runs the tools. The server fills it in.", []),
    }

    def changes(self, step: AgentStep, kinds: Kinds) -> bool:
        tools: tuple[RunTool, ...] = (*step.served, *step.client_tools)
        return not all(map(starts_early, tools))

    def later(self, step: AgentStep, kinds: Kinds) -> tuple[str, ...]:
        read = (one.semantic_var_id for one in step.call.placeholders)
        return tuple(dict.fromkeys(one for one in read if one is not None))

    def transforms(self, step: AgentStep) -> Iterator[Sequence[Mapping[str, Any]]]:
        return (holder.transforms for holder in step.call.placeholders)

    def renamed(self, step: AgentStep, rename: Rename, kinds: Kinds) -> AgentStep:
        step = super().renamed(step, rename, kinds)
        return replace(step, call=renamed_call(step.call, rename))

    def resolved(self, step: AgentStep, resolver: Resolver) -> AgentStep:
        if step.served:
            raise InvalidRequest("the server fills in 'served': leave it out", param="served")
        call, tools, own = resolver.prepare(step.call), resolver.tools(), step.client_tools
        if step.code_tool is not None:
            return replace(step, call=call, served=(_of_code(step.code_tool, tools),))
        _check_own(call, own, tools)
        call, served = _offered(call, tools, has_others=bool(own))
        return replace(step, call=call, served=served)

    def lower(
        self, step: AgentStep, resource: str, id: str, batch: int | None, kinds: Kinds
    ) -> Task:
        code = next(((one.name, one.code) for one in step.served if one.code is not None), None)
        run = AgentSetup(
            id=id, owner=id, served=step.served, own=step.client_tools, code=code, most=step.most
        )
        turn = turn_of(run, kinds, step.call, first_turn(id))
        [first] = turn.primitives
        later, waits = self.later(step, kinds), waits_for(step)
        body = AgentBegin(run, turn)
        begin = primitive(id, 0, "agent", begun(id), body, reads_of(waits, later), self.traits)
        primitives = (
            replace(begin, work=1 + first.work, output=first.output),  # one turn is certain
            primitive(id, 1, "answer", step.out or f"{id}.out", AnswerBody()),
        )
        return task_of(step, id, primitives, later)


@dataclass(frozen=True, slots=True)
class AgentBegin(ControlBody, Growing):
    """The begin of an agent. The value of this primitive is the most turns that the agent may
    have."""

    run: AgentSetup
    turn: Task  # the first

    @property
    def changes(self) -> bool:
        return self.run.changes

    @property
    def generates(self) -> bool:
        """Whether the step generates text: an agent begins with a call of a model."""
        return True

    def value(self, variables: Variables, answer: Any = None) -> object:
        return self.run.most

    def growth(self, graph: Graph, value: Any) -> Growth:
        answer = graph.primitives[f"{self.run.owner}/1"]
        [variable] = self.turn.writes
        last = rewired(answer, (Read(variable),), AnswerBody(variable))
        return Growth(tasks=(self.turn,), rewritten={last.id: last})


def _offered(
    call: Call, tools: Tools, has_others: bool = False
) -> tuple[Call, tuple[ServedTool, ...]]:
    """The call with the server's tools that it names, or all if it names none, and these tools. The
    server runs no others.
    """
    if not tools and not has_others:
        raise InvalidRequest(
            "this server has no tools: add a [[tool]] table to its configuration",
            param="tools",
        )
    if not call.tools:
        offered = tuple(tool_of(told) for _, told in tools.values())
        return replace(call, tools=offered), _served(tools, tools)
    names = [one.function.name for one in call.tools]
    named = zip(names, call.tools, strict=True)
    offered = tuple(tool_of(tools[name][1]) if name in tools else one for name, one in named)
    return replace(call, tools=offered), _served(names, tools)


def _served(names: Iterable[str], tools: Tools) -> tuple[ServedTool, ...]:
    known = (tools[name] for name in names if name in tools)
    return tuple(served_tool(engine, told) for engine, told in known)


def _check_own(call: Call, own: Sequence[ClientTool], tools: Tools) -> None:
    offered = {one.function.name for one in call.tools}
    for one in own:
        if one.name in tools or one.name not in offered:
            raise InvalidRequest(
                f"client_tools names {one.name!r}, which "
                + ("the server runs" if one.name in tools else "is not among the tools"),
                param="client_tools",
            )


def _of_code(name: str, tools: Tools) -> ServedTool:
    """The tool that takes blocks of code. Raises InvalidRequest if it does not take one text."""
    schema = tool_of(tools[name][1]).function.schema if name in tools else {}
    needed = schema.get("required", [])
    if len(needed) != 1 or schema["properties"][needed[0]].get("type") != "string":
        raise InvalidRequest(
            f"code_tool {name!r} is no tool of this server that takes one text: add a [[tool]] "
            'with module = "weftline_engine.services.tools.interpreter"',
            param="code_tool",
        )
    [tool] = _served([name], tools)
    return replace(tool, code=needed[0])
