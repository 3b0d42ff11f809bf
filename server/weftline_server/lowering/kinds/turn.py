"""A turn of an agent: a call of a model whose answer may call tools.

The tool calls are items of the answer. A tool without effects gets its task when the item of its
call is complete, and the model writes on. The turn's end gives the other calls their tasks, and
adds the next turn, whose prompt reads the results of the tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from weftline.contract.arguments import ArgumentReader
from weftline.contract.errors import EngineFailed, WeftlineError
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline.contract.steps import MAX_TURNS
from weftline.contract.tools import CalledFunction, ClientTool, ServedTool, ToolCall
from weftline_engine.api import FinishReason
from weftline_engine.api.record import record
from weftline_server.graph.graph import Graph
from weftline_server.graph.growth import Growing, Growth, TakesItems
from weftline_server.graph.primitive import Primitive, Read, Task
from weftline_server.lowering.control.base import ControlBody, Variables, rewired
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.kinds.tool import RunTool, ToolBody, lower_tool, starts_early
from weftline_server.lowering.step import Kinds
from weftline_server.prompt.answer import CallState, WrittenCall
from weftline_server.prompt.tool_blocks import BlockStyle, code_of

# How often an agent writes a turn again whose engine has died after tools had started.
MOST_AGAIN = 2


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The data that all turns of an agent share; plain data, which a journal keeps.

    The ids of an agent's tasks begin with `id`. The tools of `served` run in the server, those of
    `own` in the client. With `code` the blocks of Python in an answer are calls of this tool, which
    takes them as this argument. The tasks belong to the step `owner`, whose value is the last
    answer; "" of an agent in an old journal, which was no step.
    """

    id: str
    owner: str = ""
    served: tuple[ServedTool, ...] = ()
    own: tuple[ClientTool, ...] = ()
    code: tuple[str, str] | None = None
    most: int = MAX_TURNS

    def tool(self, name: str) -> RunTool | None:
        """The tool with this name; None of one that the run does not know."""
        tools: tuple[RunTool, ...] = (*self.served, *self.own)
        return next((one for one in tools if one.name == name), None)

    @property
    def changes(self) -> bool:
        """Whether a tool changes something outside the graph."""
        tools: tuple[RunTool, ...] = (*self.served, *self.own)
        return not all(map(starts_early, tools))


@dataclass(frozen=True, slots=True)
class TakenCall:
    """Call number `index` of an answer, and the task that runs it; "" before it has one."""

    index: int
    call: WrittenCall
    task: str = ""

    @property
    def result(self) -> str:
        """The variable of the tool's result."""
        return f"{self.task}.out"


@dataclass(frozen=True, slots=True)
class OpenToolBody(ToolBody, Growing):
    """A tool that takes its call while the `turn` writes it. A tool that ends before the turn has
    refused the call, and the turn ends with this call.
    """

    gives: ClassVar[bool] = True
    turn: str
    index: int

    def growth(self, graph: Graph, value: Any) -> Growth:
        body = graph.primitives[self.turn].body
        assert isinstance(body, TurnBody), f"{self.turn} is no turn"
        written = body.known(self.index)
        refuses = written is not None and written.call.state is CallState.OPEN
        return Growth(cut=(self.turn,)) if refuses else Growth()


@dataclass(frozen=True, slots=True)
class AnswerBody(ControlBody):
    """The text of an agent's last answer; `limit` says that it had its most turns. `variable` is
    the answer of the turn that is the last so far.
    """

    variable: str = ""
    limit: bool = False

    @property
    def reason(self) -> FinishReason | None:
        """`limit` after the most turns."""
        return FinishReason.LIMIT if self.limit else None

    def value(self, variables: Variables, answer: Any = None) -> object:
        return said(variables[self.variable].value)


@dataclass(slots=True)
class _Grown:
    """A growth while it is put together."""

    tasks: list[Task] = field(default_factory=list)
    rewritten: dict[str, Primitive] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)

    def done(self) -> Growth:
        return Growth(tuple(self.tasks), {}, self.rewritten, tuple(self.released))


@record
class TurnBody(PromptBody, TakesItems):
    """Turn `number` of an agent. `taken` are the calls that the graph knows, in their order.

    The turn may be written `again` so often. The calls of `spare` are complete ones of an attempt
    that has failed: an equal call takes over such a task. `next` is the task that goes on.
    """

    gives: ClassVar[bool] = True
    task: str
    run: AgentSetup
    kinds: Kinds
    number: int = 0
    again: int = MOST_AGAIN
    taken: tuple[TakenCall, ...] = ()
    spare: tuple[TakenCall, ...] = ()
    next: str = ""

    @property
    def blocks(self) -> BlockStyle | None:
        """How blocks in the answer call a tool; None if they call none."""
        return None if self.run.code is None else code_of(*self.run.code)

    def streams_out(self, variable: str) -> bool:
        """Not with code: the value is the text without its thoughts."""
        # `record` makes the class again, where super() without arguments fails.
        return self.run.code is None and PromptBody.streams_out(self, variable)

    def known(self, index: int) -> TakenCall | None:
        """Call number `index`, if the graph knows it."""
        return next((one for one in self.taken if one.index == index), None)

    def opens(self, name: str) -> bool:
        """Whether the tool takes its call while it is written."""
        tool = self.run.tool(name)
        is_known = any(spare.call.name == name for spare in self.spare)
        return isinstance(tool, ServedTool) and tool.streams and starts_early(tool) and not is_known

    def starts(self, name: str) -> bool:
        """Whether the tool starts when its call is complete."""
        tool = self.run.tool(name)
        return tool is not None and starts_early(tool)

    def growth_of(self, graph: Graph, offset: int, items: Sequence[Any]) -> Growth:
        """The growth that follows from calls as far as they are written; the first call has this
        number. A call that the graph knows already may be complete now, or be another call: the
        answer is written again after a restart of the server.
        """
        grown, body = _Grown(), self
        for index, item in enumerate(items, offset):
            body = body._taking(graph, index, WrittenCall.of(item), grown)
        return body._grow(graph, grown)

    def growth(self, graph: Graph, value: Any) -> Growth:
        """The tools that had to wait for the end of the turn, and the next turn."""
        grown = _Grown()
        unused = [one.result for one in self.spare]
        if not self._goes_on or self.number + 1 == self.run.most:
            grown.released += [*unused, *(one.result for one in self.taken if one.task)]
            self._answers(graph, str(self.output.semantic_var_id), grown, limit=self._goes_on)
            return self._grow(graph, grown)
        taken = tuple(one if one.task else self._started(graph, one, grown) for one in self.taken)
        grown.released += unused
        body = replace(self, taken=taken, spare=())
        id = f"{self.run.id}.{self.number + 1}"
        call = body._next_call(said(value), thoughts(value))
        turn = turn_of(self.run, self.kinds, call, id, number=self.number + 1, again=self.again)
        return body._followed(graph, turn, grown)

    def failure(self, graph: Graph, error: WeftlineError, is_taken: bool) -> Growth:
        """Another attempt to write the turn, if the turn's engine has died. Else the turn's tools
        end with the turn. Where no tool had started, the engines have had all their attempts.
        """
        grown = _Grown()
        begun = [one for one in self.taken if one.task]
        if is_taken or not self.again or not self.taken or not isinstance(error, EngineFailed):
            grown.released += [one.result for one in (*begun, *self.spare)]
            return grown.done()
        sealed = [one for one in begun if one.call.state is CallState.SEALED]
        grown.released += [one.result for one in begun if one not in sealed]
        turn = turn_of(
            self.run,
            self.kinds,
            _unbound(self.call),
            f"{self.task}x{self.again}",
            number=self.number,
            again=self.again - 1,
            spare=(*self.spare, *sealed),
        )
        return self._followed(graph, turn, grown)

    @property
    def _goes_on(self) -> bool:
        """Whether the run continues: its tools run all calls of the turn, none cut off."""
        if not self.taken or any(self.run.tool(one.call.name) is None for one in self.taken):
            return False
        return self.taken[-1].call.state is not CallState.CUT

    def _taking(self, graph: Graph, index: int, call: WrittenCall, grown: _Grown) -> TurnBody:
        """This body with the call, whose task is added if it starts now."""
        old = self.known(index)
        if old is not None and old.call == call:
            return self
        others = tuple(one for one in self.taken if one.index != index)
        if old is not None and _continues(old.call, call):
            made = replace(old, call=call)
            if made.task and call.state in (CallState.SEALED, CallState.ENDED):
                grown.rewritten.update(_closed(graph, made))
            return replace(self, taken=_ordered(*others, made))
        if old is not None and old.task:
            grown.released.append(old.result)
        if call.state is CallState.GONE:
            return replace(self, taken=others)
        made = TakenCall(index, call)
        if (known := self._spare_of(call)) is not None:
            spare = tuple(one for one in self.spare if one is not known)
            made = replace(made, task=known.task)
            return replace(self, taken=_ordered(*others, made), spare=spare)
        if call.state is CallState.SEALED and self.starts(call.name):
            made = self._started(graph, made, grown)
        elif call.state is CallState.OPEN and self.opens(call.name):
            made = self._opened(graph, made, grown)
        return replace(self, taken=_ordered(*others, made))

    def _spare_of(self, call: WrittenCall) -> TakenCall | None:
        """An equal call of an attempt that has failed."""
        if call.state is not CallState.SEALED:
            return None
        equal = (one for one in self.spare
                 if (one.call.name, one.call.arguments) == (call.name, call.arguments))  # fmt: skip
        return next(equal, None)

    def _started(self, graph: Graph, one: TakenCall, grown: _Grown) -> TakenCall:
        """The call with a task, which is added."""
        tool = self.run.tool(one.call.name)
        assert tool is not None, "the run knows the tool"
        id = self._tool_id(graph, one.index)
        task = lower_tool(tool, one.call.arguments, id, self.kinds)
        grown.tasks.append(replace(task, owner=self.run.owner))
        return replace(one, task=id)

    def _opened(self, graph: Graph, one: TakenCall, grown: _Grown) -> TakenCall:
        """The call with a task that takes the rest of its arguments as they are written."""
        made = self._started(graph, one, grown)
        task = grown.tasks.pop()
        [primitive] = task.primitives
        body = OpenToolBody(one.call.name, "", True, f"{self.task}/0", one.index)
        grown.tasks.append(replace(task, primitives=(replace(primitive, body=body),)))
        return made

    def _tool_id(self, graph: Graph, index: int) -> str:
        """The id of a task for call number `index`. A call that was thrown away keeps its own."""
        id = f"{self.task}.t{index}"
        while id in graph.tasks:
            id += "x"
        return id

    def _grow(self, graph: Graph, grown: _Grown) -> Growth:
        """The growth, with which the graph has this body."""
        id = f"{self.task}/0"
        grown.rewritten[id] = replace(graph.primitives[id], body=self)
        return grown.done()

    def _followed(self, graph: Graph, turn: Task, grown: _Grown) -> Growth:
        """The growth with a turn that goes on."""
        grown.tasks.append(turn)
        self._answers(graph, turn.writes[0], grown)
        return replace(self, next=turn.id)._grow(graph, grown)

    def _answers(self, graph: Graph, variable: str, grown: _Grown, *, limit: bool = False) -> None:
        """Let the agent's value be this answer."""
        if self.run.owner:
            last = graph.primitives[f"{self.run.owner}/1"]
            body = AnswerBody(variable, limit)
            grown.rewritten[last.id] = rewired(last, (Read(variable),), body)

    def _next_call(self, text: str, thoughts: str | None) -> Call:
        """The call of the next turn, whose prompt reads the results of the tools."""
        call = _unbound(self.call)
        assert not isinstance(call.prompt, str), "the prompt of a chat is messages"
        *before, answer = call.prompt
        *inputs, output = call.placeholders
        in_text = self.run.code is not None
        made = tuple(_tool_call(one.call) for one in self.taken if not in_text)
        content = (Segment(text=text),) if text else ()
        messages = [
            Message(role="assistant", content=content, tool_calls=made, reasoning_content=thoughts)
        ]
        names = {one.name for one in call.placeholders}
        holders: list[Placeholder] = []
        for one in self.taken:
            name = _unused(f"tool_{self.number + 1}_{one.index}", names)
            id = None if in_text else one.call.id
            result = (Segment(input=name),)
            messages.append(Message(role="tool", content=result, tool_call_id=id))
            holders.append(Placeholder(name=name, in_out=InOut.IN, semantic_var_id=one.result))
        return replace(
            call,
            prompt=(*before, *messages, answer),
            placeholders=(*inputs, *holders, output),
            # A forced call is forced once: otherwise the model could never answer.
            tool_choice="auto" if call.tool_choice != "none" else "none",
        )


def turn_of(
    run: AgentSetup,
    kinds: Kinds,
    call: Call,
    id: str,
    *,
    number: int = 0,
    again: int = MOST_AGAIN,
    spare: tuple[TakenCall, ...] = (),
) -> Task:
    task = as_turn(kinds.lower_call(call, call.model or "", id), run, kinds)
    [primitive] = task.primitives
    assert isinstance(primitive.body, TurnBody), "it was made a turn"
    body = replace(primitive.body, number=number, again=again, spare=spare)
    return replace(task, primitives=(replace(primitive, body=body),))


def as_turn(task: Task, run: AgentSetup, kinds: Kinds) -> Task:
    """The task of a call as a turn of an agent, the first unless it says more."""
    [primitive] = task.primitives
    body = primitive.body
    assert isinstance(body, PromptBody), "a turn is a call"
    given = {one.name: getattr(body, one.name) for one in fields(PromptBody)}
    turn = TurnBody(**{**given, "is_read": True}, task=task.id, run=run, kinds=kinds)
    return replace(task, primitives=(replace(primitive, body=turn),), owner=run.owner)


def first_turn(agent: str) -> str:
    """The id of the first turn of the step with this id."""
    return f"{agent}.0"


def begun(agent: str) -> str:
    """The variable that says that the step with this id has its first turn."""
    return f"{agent}.turns"


def turn_body(graph: Graph, task: str) -> TurnBody:
    body = graph.primitives[f"{task}/0"].body
    assert isinstance(body, TurnBody), f"{task} is no turn"
    return body


def turns(graph: Graph, first: str) -> Iterator[Task]:
    """The turns of an agent so far, and those that were written again."""
    id = first
    while id:
        yield graph.tasks[id]
        id = turn_body(graph, id).next


def said(value: Any) -> str:
    """The text of an answer, which is a message or a text."""
    return value if isinstance(value, str) else value["content"] or ""


def thoughts(value: Any) -> str | None:
    """The thoughts before an answer that is a message."""
    return None if isinstance(value, str) else value.get("reasoning_content")


def _ordered(*taken: TakenCall) -> tuple[TakenCall, ...]:
    """The calls in the order of the answer."""
    return tuple(sorted(taken, key=lambda one: one.index))


def _continues(old: WrittenCall, new: WrittenCall) -> bool:
    """Whether both are the same call, which was being written."""
    is_same = (old.id, old.name) == (new.id, new.name)
    return is_same and old.state is CallState.OPEN and new.state is not CallState.GONE


def _closed(graph: Graph, one: TakenCall) -> Mapping[str, Primitive]:
    """The tool's primitive with all of its arguments, if it took them while they were written."""
    primitive = graph.primitives[f"{one.task}/0"]
    if not isinstance(primitive.body, OpenToolBody):
        return {}
    body = ToolBody(one.call.name, one.call.arguments, False)
    return {primitive.id: replace(primitive, body=body)}


def _tool_call(call: WrittenCall) -> ToolCall:
    """The call for the next prompt. A refused one has only its complete arguments."""
    arguments = call.arguments
    try:
        json.loads(arguments)
    except ValueError:
        reader = ArgumentReader()
        reader.feed(arguments)
        arguments = json.dumps(reader.value, ensure_ascii=False)
    return ToolCall(id=call.id, function=CalledFunction(name=call.name, arguments=arguments))


def _unused(name: str, names: set[str]) -> str:
    """The name, or one like it that the call has not."""
    while name in names:
        name += "_"
    return name


def _unbound(call: Call) -> Call:
    """The call with its output last, which has no variable yet."""
    [output] = [one for one in call.placeholders if one.in_out is InOut.OUT]
    inputs = (one for one in call.placeholders if one.in_out is InOut.IN)
    return replace(call, placeholders=(*inputs, replace(output, semantic_var_id=None)))
