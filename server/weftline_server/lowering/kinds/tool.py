"""Kind `tool`: a tool that an answer of a model calls.

Every end of the call is an observation for the model, and no failure of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weftline.contract.steps import ClientStep
from weftline.contract.tools import ClientTool, Function, ServedTool, Tool
from weftline_engine import api
from weftline_server.graph.primitive import Effects, Primitive, PrimitiveBody, Task, Traits
from weftline_server.lowering.step import Kinds

TRAITS = Traits(anywhere=True, operation="execute_tool")

RunTool: TypeAlias = ServedTool | ClientTool  # a tool of a run, by who computes it


def served_tool(engine: str, told: Mapping[str, Any]) -> ServedTool:
    """The tool that the description of an engine tells of."""
    return ServedTool(
        name=told["name"], engine=engine, effects=told["effects"], streams=told["streams"]
    )


def tool_of(told: Mapping[str, Any]) -> Tool:
    """The tool of an engine's description, in the form that the model gets."""
    function = Function(
        name=told["name"], description=told["description"], parameters=told["parameters"]
    )
    return Tool(function=function)


def starts_early(tool: RunTool) -> bool:
    """Whether a call may start before the model's turn has ended."""
    return Effects(tool.effects) is Effects.NONE


@dataclass(frozen=True, slots=True)
class ToolBody(PrimitiveBody):
    """A tool, and the JSON text of its arguments. More text may follow if the body `is_open`."""

    tool: str
    arguments: str
    is_open: bool

    def lost(self) -> object | None:
        return "the tool did not finish: the server ended while it ran. It may have run"


def lower_tool(tool: RunTool, arguments: str, id: str, kinds: Kinds) -> Task:
    if isinstance(tool, ClientTool):
        step = ClientStep(name=tool.name, effects=tool.effects, lease_s=tool.lease_s)
        return kinds.lower_step(step, "", id)
    body = ToolBody(tool.name, arguments, False)
    return task_of_tool(id, tool.engine, body, Effects(tool.effects), (f"{id}.out",))


def task_of_tool(
    id: str, resource: str, body: ToolBody, effects: Effects, writes: tuple[str, ...]
) -> Task:
    primitive = Primitive(
        id=f"{id}/0",
        task=id,
        kind="tool",
        resource=resource,
        writes=writes,
        effects=effects,
        work=1,
        body=body,
        traits=TRAITS,
    )
    return Task(id=id, name=body.tool, resource=resource, primitives=(primitive,))


def of_request(task: Task) -> Task:
    """The task of a call in a record of an earlier version, whose request waited for the result."""
    traits = replace(TRAITS, of_request=True)
    return replace(task, primitives=tuple(replace(one, traits=traits) for one in task.primitives))


def observed(finished: api.Finished) -> object:
    """The observation of a call that an engine has finished, for the model."""
    assert isinstance(finished.value, dict), "a tool engine's value is an observation"
    return finished.value["content"]


def observed_failure(effects: Effects, failed: api.Failed) -> api.Finished:
    """The observation of a call that no engine has finished."""
    unknown = "" if effects is Effects.NONE else ". It may have run"
    now = failed.time
    return api.Finished(
        op=failed.op,
        attempt=failed.attempt,
        sequence=failed.sequence,
        time=now,
        reason=api.FinishReason.STOP,
        usage=api.Usage(prompt_tokens=0, cached_tokens=0, output_tokens=0, started=now, filled=now),
        value={"content": f"the tool did not finish: {failed.message}{unknown}"},
    )
