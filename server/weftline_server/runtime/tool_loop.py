"""Answers of a model with tools that the server runs: turns of the model, and the tools of each.

A tool without effects starts as soon as its call is complete, while the model writes on. One that
streams takes its call piece by piece, and may stop the turn. The next turn's prompt reads the
tools' results as variables, so the results that are there are filled while slower tools run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from weftline.contract.arguments import ArgumentReader
from weftline.contract.errors import Cancelled, EngineFailed, InvalidRequest, WeftlineError
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment, Submit
from weftline.contract.tools import CalledFunction, ClientTool, ToolCall
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import PrimitiveId, Task
from weftline_server.lowering.kinds.prompt import call_of
from weftline_server.lowering.kinds.tool import (
    RunTool,
    ServerTool,
    ToolBody,
    lower_tool,
    starts_early,
)
from weftline_server.prompt.answer_parser import AnswerParser, parser_of
from weftline_server.prompt.tool_blocks import BlockParser, BlockStyle, code_of
from weftline_server.prompt.tool_parser import (
    Arguments,
    Called,
    Delta,
    Said,
    Sealed,
)
from weftline_server.runtime.driver import Driver
from weftline_server.session.session import Session

# A model that calls tools for ever gets this many turns.
MOST_TURNS = 16
# How often one run asks again for a turn whose engine has died, if the client has nothing of it.
MOST_AGAIN = 2


@dataclass(slots=True)
class _Written:
    """A tool call as far as the model has written it, and the task that runs it."""

    id: str
    name: str
    arguments: str = ""
    sealed: bool = False
    task: Task | None = None
    fed: int = 0  # characters of the arguments that an open op has


@dataclass
class Turn:
    """One answer of the model. One that `was_stopped` ends with the call that a tool refused."""

    task: Task
    said: str = ""
    calls: list[_Written] = field(default_factory=list)
    was_stopped: bool = False
    in_text: bool = False  # the calls are blocks of what it said

    def message(self) -> dict[str, Any]:
        """The answer as OpenAI's message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.said}
        if self.calls and not self.in_text:
            calls = [
                {
                    "id": one.id,
                    "type": "function",
                    "function": {"name": one.name, "arguments": one.arguments},
                }
                for one in self.calls
            ]
            message |= {"content": self.said or None, "tool_calls": calls}
        return message


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call of a tool that the client runs. Its result becomes the value of `variable`."""

    id: str
    name: str
    arguments: str
    variable: str


class ToolLoop:
    """One request's turns, in its session. The tools of `tools` are run, here or by the client."""

    def __init__(
        self,
        driver: Driver,
        session: Session,
        call: Call,
        tools: Mapping[str, RunTool],
        blocks: BlockStyle | None = None,
    ) -> None:
        self._driver = driver
        self._session = session
        self._call = call
        self._tools = tools
        self._blocks = blocks
        self._watches = ExitStack()  # of the open calls of the turn that is being written
        self._due: list[ClientCall] = []  # calls that the client is not yet told of
        self._spare: list[_Written] = []  # complete calls of a turn whose engine has died
        self.turns: list[Turn] = []

    async def events(self, told: bool = True) -> AsyncIterator[str | ClientCall]:
        """What the model says, turn by turn, and the calls that the client has to compute.

        Afterwards `turns` is complete. `told` says that the client gets all of it at once. A turn
        whose engine dies is asked for again, unless the client has a part of it.
        """
        call, again = self._call, MOST_AGAIN
        while True:
            was_sent = False
            [task] = await self._driver.submit(
                self._session, Submit(session_id=self._session.id, calls=(call,))
            )
            turn = Turn(task, in_text=self._blocks is not None)
            self.turns.append(turn)
            try:
                async with aclosing(self._written(turn)) as texts:
                    async for text in texts:
                        if text:
                            was_sent = told
                            yield text
                        for due in self._take_due():
                            was_sent = True
                            yield due
            except EngineFailed:
                if was_sent or not again:
                    raise
                again -= 1
                self._give_up(self.turns.pop())
                continue
            self._drop_spare()
            if not self._goes_on(turn):
                return
            await self._run_rest(turn)
            for due in self._take_due():
                yield due
            if len(self.turns) == MOST_TURNS:
                return
            call = self._next(call, turn)

    async def _written(self, turn: Turn) -> AsyncGenerator[str, None]:
        """Yield what the model writes in one turn. Start the tools that may start early."""
        driver, session = self._driver, self._session
        parser = self._parser(turn.task)
        reading = driver.readers.stream(session, turn.task.writes[0])
        try:
            async with aclosing(reading) as chunks:  # type: ignore[type-var]  # it is a generator
                async for chunk in chunks:
                    for delta in parser.feed(chunk.text):
                        yield await self._hear(turn, delta)
        except Cancelled:
            if not turn.was_stopped:
                raise
            return
        finally:
            self._watches.close()
        for delta in parser.end():
            yield await self._hear(turn, delta)

    def _give_up(self, turn: Turn) -> None:
        """Keep the complete calls of a turn that has failed. Their tools have no effects, so the
        next attempt may use their results."""
        for call in turn.calls:
            if call.task is not None and call.sealed:
                self._spare.append(call)
            elif call.task is not None:
                self._driver.cancel(self._session, call.task.id)

    def _take_spare(self, call: _Written) -> Task | None:
        """The task that runs an equal call already, of the attempt before; None without one."""
        for spare in self._spare:
            if (spare.name, spare.arguments) == (call.name, call.arguments):
                self._spare.remove(spare)
                return spare.task
        return None

    def _drop_spare(self) -> None:
        """End the calls that no attempt has written again."""
        for spare in self._spare:
            assert spare.task is not None
            self._driver.cancel(self._session, spare.task.id)
        self._spare.clear()

    def _parser(self, task: Task) -> AnswerParser | BlockParser:
        if self._blocks is not None:
            return BlockParser(self._blocks, task.id)
        prompter, call = self._driver.dispatcher.prompter(task.resource), call_of(task)
        thinking = prompter.thinking(call.chat_template_kwargs)
        return parser_of(call, f"{task.id}/0", prompter.tool_format, thinking)

    async def _hear(self, turn: Turn, delta: Delta) -> str:
        match delta:
            case Said(text):
                turn.said += text
                return text
            case Called(_, id, name):
                turn.calls.append(_Written(id, name))
                tool = self._tools.get(name)
                is_known = any(spare.name == name for spare in self._spare)
                streams = isinstance(tool, ServerTool) and tool.streams and not is_known
                if tool is not None and streams and self._may_start(tool):
                    await self._start(turn.calls[-1], is_open=True)
            case Arguments(index, text):
                turn.calls[index].arguments += text
                await self._feed(turn.calls[index])
            case Sealed(index):
                call = turn.calls[index]
                call.sealed = True
                tool = self._tools.get(call.name)
                if call.task is None:
                    call.task = self._take_spare(call)
                if call.task is not None:
                    await self._feed(call)
                elif tool is not None and self._may_start(tool):
                    await self._start(call)
        return ""

    def _take_due(self) -> list[ClientCall]:
        due, self._due = self._due, []
        return due

    def _may_start(self, tool: RunTool) -> bool:
        return "early_tools" not in self._driver.without and starts_early(tool)

    async def _start(self, call: _Written, is_open: bool = False) -> None:
        tool = self._tools[call.name]
        task = lower_tool(tool, call.arguments, is_open)
        call.task = task
        if isinstance(tool, ClientTool):
            self._due.append(ClientCall(call.id, call.name, call.arguments, task.writes[0]))
        if is_open:
            self._watch(self.turns[-1], task.writes[0])
        await self._driver.start(self._session, [task])

    async def _feed(self, call: _Written) -> None:
        """Send the new text of a call to its tool, if the tool takes its arguments as a stream."""
        body = None if call.task is None else call.task.primitives[0].body
        if call.task is None or not isinstance(body, ToolBody) or not body.is_open:
            return
        op = str(PrimitiveId(self._session.id, call.task.primitives[0].id))
        run = self._session.primitives[call.task.primitives[0].id]
        text = call.arguments[call.fed :]
        # The op is queued in the next turns of the event loop.
        feed = partial(self._driver.dispatcher.feed, op, text, call.sealed)
        while run.live and not feed():  # noqa: ASYNC110 - no event marks it
            await asyncio.sleep(0)
        call.fed = len(call.arguments)

    def _watch(self, turn: Turn, variable: str) -> None:
        """Stop the turn when the tool that writes `variable` refuses its call.

        That is not left to the model's next text: an engine may be slow, or hold text back.
        """
        loop = asyncio.get_running_loop()

        def changed() -> None:
            # Not at once: the session is still performing the end of the tool.
            loop.call_soon(self._stop_if_refused, turn)

        readers = self._driver.readers
        self._watches.enter_context(readers.watching(self._session, variable, changed))

    def _stop_if_refused(self, turn: Turn) -> None:
        """Cancel the model's turn if a tool has ended before its call was complete."""
        if turn.was_stopped or self._session.ended is not None or not self._is_refused(turn):
            return
        turn.was_stopped = True
        self._driver.cancel(self._session, turn.task.id)

    def _is_refused(self, turn: Turn) -> bool:
        """Whether a tool has ended before the model has written all of its call."""
        return any(
            call.task is not None
            and not call.sealed
            and not self._session.primitives[call.task.primitives[0].id].live
            for call in turn.calls
        )

    def _goes_on(self, turn: Turn) -> bool:
        """Whether the run continues: the server runs all calls of the turn, none cut off."""
        if not turn.calls or any(call.name not in self._tools for call in turn.calls):
            return False
        if turn.was_stopped:
            return True
        step = self._session.primitives[turn.task.primitives[0].id].step
        is_cut = step is not None and step.reason is FinishReason.LENGTH
        return not is_cut or turn.calls[-1].sealed

    async def _run_rest(self, turn: Turn) -> None:
        """Start the tools that had to wait for the end of the turn."""
        for call in turn.calls:
            if call.task is None:
                await self._start(call)
            elif not call.sealed:  # it was written without its closing mark
                call.sealed = True
                await self._feed(call)

    def _next(self, call: Call, turn: Turn) -> Call:
        """The call of the next turn, whose prompt reads the results of the tools."""
        assert not isinstance(call.prompt, str), "the prompt of a chat is messages"
        *before, answer = call.prompt
        made = tuple(
            ToolCall(id=one.id, function=CalledFunction(name=one.name, arguments=_json(one)))
            for one in turn.calls
            if not turn.in_text
        )
        said = (Segment(text=turn.said),) if turn.said else ()
        messages: list[Message] = [Message(role="assistant", content=said, tool_calls=made)]
        holders: list[Placeholder] = []
        for index, one in enumerate(turn.calls):
            assert one.task is not None, "every tool has started"
            name = f"tool_{len(self.turns)}_{index}"
            messages.append(
                Message(
                    role="tool",
                    content=(Segment(input=name),),
                    tool_call_id=None if turn.in_text else one.id,
                )
            )
            holders.append(
                Placeholder(name=name, in_out=InOut.IN, semantic_var_id=one.task.writes[0])
            )
        *inputs, output = call.placeholders
        return replace(
            call,
            prompt=(*before, *messages, answer),
            placeholders=(*inputs, *holders, output),
            # A forced call is forced once: otherwise the model could never answer.
            tool_choice="auto" if call.tool_choice != "none" else "none",
        )

    async def messages(self) -> list[dict[str, Any]]:
        """The messages of the run that came before the last answer, as OpenAI's."""
        found: list[dict[str, Any]] = []
        for turn in self.turns[:-1]:
            found.append(turn.message())
            for call in turn.calls:
                assert call.task is not None, "every tool has started"
                found.append(
                    {
                        "role": "tool",
                        "tool_call_id": call.id,
                        "content": await self._content(call.task),
                    }
                )
        return found

    async def _content(self, task: Task) -> str:
        try:
            return str((await self._driver.readers.get(self._session, task.writes[0])).value)
        except WeftlineError as error:
            return error.message


def _json(call: _Written) -> str:
    """The arguments for the next prompt. A stopped call has only its complete arguments."""
    try:
        json.loads(call.arguments)
    except ValueError:
        reader = ArgumentReader()
        reader.feed(call.arguments)
        return json.dumps(reader.value, ensure_ascii=False)
    return call.arguments


def _blocks_of(tools: Mapping[str, ServerTool], name: str) -> BlockStyle:
    """How blocks of code call the tool. Raises InvalidRequest if it does not take a text."""
    tool = tools.get(name)
    schema = {} if tool is None else tool.tool.function.schema
    needed = schema.get("required", [])
    if len(needed) != 1 or schema["properties"][needed[0]].get("type") != "string":
        raise InvalidRequest(
            f"code_tool {name!r} is no tool of this server that takes one text: add a [[tool]] "
            'with module = "weftline_engine.tools.interpreter"',
            param="weftline.code_tool",
        )
    return code_of(name, needed[0])


class ServerTools:
    """The tools that the engines run, and the requests that use them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def loop(
        self,
        session: Session,
        call: Call,
        own: Sequence[ClientTool] = (),
        code: str | None = None,
    ) -> ToolLoop:
        """The turns of `call`, with the server's tools that it names, or all if it names none.

        The client computes the tools of `own`. With `code` the calls are the blocks of Python in
        the answer, for that tool. A call of any other tool that the server does not
        know ends the run. Raises InvalidRequest if there is no tool to run.
        """
        known = {
            name: ServerTool.of(resource, told)
            for name, (resource, told) in self._driver.dispatcher.tools.items()
        }
        if code is not None:
            return ToolLoop(self._driver, session, call, known, _blocks_of(known, code))
        offered = {one.function.name for one in call.tools}
        for one in own:
            if one.name in known or one.name not in offered:
                raise InvalidRequest(
                    f"client_tools names {one.name!r}, which "
                    + ("the server runs" if one.name in known else "is not among the tools"),
                    param="weftline.client_tools",
                )
        if not known and not own:
            raise InvalidRequest(
                "this server has no tools: add a [[tool]] table to its configuration",
                param="weftline.run_tools",
            )
        named = (
            known[name].tool if (name := one.function.name) in known else one for one in call.tools
        )
        tools = tuple(named) or tuple(one.tool for one in known.values())
        run: dict[str, RunTool] = {**known, **{one.name: one for one in own}}
        return ToolLoop(self._driver, session, replace(call, tools=tools), run)
