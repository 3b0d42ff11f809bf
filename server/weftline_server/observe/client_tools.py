"""Tools that a client runs between two calls: an answer calls them, and a later prompt has their
results.

The server sees when the answer ended and when the later call came. A tool ran somewhere between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict

from weftline.contract.protocol import Message
from weftline_server.graph.primitive import Task
from weftline_server.observe.snapshot import Seen, calling_answers
from weftline_server.session.task import RunState, TaskRun

NAME_CHARS = 64  # of a name that a model wrote


@dataclass(slots=True)
class ClientToolRun:
    """One call of a tool. `call` is the id that the model's answer gave it. `read_by` is the first
    task whose prompt has its result, or "".

    `began` and `ended` are seconds of the sessions' clock; a tool without a result has no end.
    """

    id: str
    call: str
    name: str
    arguments: str
    asked_by: str
    variable: str  # of the answer
    began: float
    read_by: str = ""
    ended: float | None = None


@dataclass(slots=True)
class _Asked:
    tools: dict[str, list[ClientToolRun]] = field(default_factory=dict)  # by the call's id

    def join(self, call: str, reader: TaskRun) -> None:
        """The reader has the result of the newest such call that was there before it."""
        for tool in reversed(self.tools.get(call, ())):
            if tool.began <= reader.submitted and tool.asked_by != reader.task.id:
                if not tool.read_by:
                    tool.read_by, tool.ended = reader.task.id, reader.submitted
                return


def client_tools(session: Seen) -> list[ClientToolRun]:
    """The tools of the session's answers, in the order of the answers.

    The turns of an agent that the server runs have tasks for their tools, and are left out.
    """
    answers = calling_answers(session)
    asked = _Asked()
    for run in session.tasks.values() if answers else ():
        if run.task.call is None or run.task.owner or run.state is not RunState.DONE:
            continue
        for variable in run.task.writes:
            ended = run.steps[-1].finished if run.steps else None
            for number, one in enumerate(_called(answers.get(variable))):
                tool = ClientToolRun(
                    id=f"{run.task.id}:tool{number}",
                    **one,
                    asked_by=run.task.id,
                    variable=variable,
                    began=ended or run.submitted,
                )
                asked.tools.setdefault(tool.call, []).append(tool)
    for run in session.tasks.values() if asked.tools else ():
        for id in _results(run.task):
            asked.join(id, run)
    return [tool for tools in asked.tools.values() for tool in tools]


def tool_view(session: Seen, tool: ClientToolRun) -> dict[str, Any]:
    """A tool as JSON. Times are seconds since the session was opened."""
    ended = tool.ended if tool.read_by else session.ended
    state = RunState.DONE if tool.read_by else RunState.RUNNING
    return {
        "tool_id": tool.id,
        "name": tool.name,
        "state": (state if tool.read_by or session.ended is None else RunState.CANCELLED).value,
        "asked_by": tool.asked_by,
        "read_by": tool.read_by or None,
        "began_s": tool.began - session.opened,
        "ended_s": None if ended is None else ended - session.opened,
    }


class _Said(TypedDict):
    call: str
    name: str
    arguments: str


def _called(answer: Any) -> Iterator[_Said]:
    """The calls in an answer, which a model wrote."""
    calls = answer.get("tool_calls") if isinstance(answer, dict) else None
    for one in calls if isinstance(calls, list) else ():
        function = one.get("function") if isinstance(one, dict) else None
        if isinstance(function, dict) and one.get("id"):
            name, arguments = str(function.get("name", "")), str(function.get("arguments", ""))
            yield {"call": str(one["id"]), "name": name[:NAME_CHARS], "arguments": arguments}


def _results(task: Task) -> Iterator[str]:
    """The ids of the tools' calls whose results stand in a prompt."""
    call = task.call
    if call is None or task.owner:
        return
    for item in call.prompt:
        if isinstance(item, Message) and item.tool_call_id is not None:
            yield item.tool_call_id
    for placeholder in call.placeholders:  # a list of messages may be the value of an input
        given = placeholder.value
        for one in given if isinstance(given, list) else ():
            if isinstance(one, dict) and isinstance(one.get("tool_call_id"), str):
                yield one["tool_call_id"]


def is_message_of(value: Any, role: str) -> bool:
    """Whether a value is a message of this role, as OpenAI's API has it."""
    return isinstance(value, dict) and value.get("role") == role
