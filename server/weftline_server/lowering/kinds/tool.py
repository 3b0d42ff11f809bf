"""Kind `tool`: a tool that an answer of a model calls.

Every end of the call is an observation for the model, and no failure of the graph.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from weftline.contract.steps import ClientStep
from weftline.contract.tools import ClientTool, Function, Tool
from weftline_engine import api
from weftline_server.graph.primitive import Effects, Primitive, PrimitiveBody, Task, Traits
from weftline_server.lowering.kinds import KINDS

TRAITS = Traits(anywhere=True, of_request=True, operation="execute_tool")


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool that the operator registered. `resource` is the engine's name for it.

    A tool that `streams` takes its call piece by piece.
    """

    resource: str
    tool: Tool
    effects: Effects
    streams: bool

    @staticmethod
    def of(resource: str, told: Mapping[str, Any]) -> ServerTool:
        """The tool that an engine's description tells of."""
        function = Function(
            name=told["name"], description=told["description"], parameters=told["parameters"]
        )
        return ServerTool(
            resource, Tool(function=function), Effects(told["effects"]), told["streams"]
        )

    @property
    def name(self) -> str:
        return self.tool.function.name


RunTool: TypeAlias = ServerTool | ClientTool  # a tool of a run, by who computes it


def starts_early(tool: RunTool) -> bool:
    """Whether a call may start before the model's turn has ended."""
    return tool.effects == Effects.NONE


@dataclass(frozen=True, slots=True)
class ToolBody(PrimitiveBody):
    """A tool, and the JSON text of its arguments. More text may follow if the body `is_open`."""

    tool: str
    arguments: str
    is_open: bool


def lower_tool(tool: RunTool, arguments: str, is_open: bool = False) -> Task:
    """The task of one call."""
    if isinstance(tool, ClientTool):
        step = ClientStep(name=tool.name, effects=tool.effects, lease_s=tool.lease_s)
        return KINDS.lower_step(step, "")
    id = f"t_{uuid.uuid4().hex[:12]}"
    body = ToolBody(tool.name, arguments, is_open)
    return task_of_tool(id, tool.resource, body, tool.effects, (f"{id}.out",))


def task_of_tool(
    id: str, resource: str, body: ToolBody, effects: Effects, writes: tuple[str, ...]
) -> Task:
    """The task with this id of one call."""
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
