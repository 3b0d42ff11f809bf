"""Lowers a call of a tool that the server runs to a task with one primitive."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from weftline.steps import ClientStep
from weftline.tools import ClientTool, Function, Tool
from weftline_server.graph.primitive import Effects, Primitive, Specs, Task
from weftline_server.lowering.step import lower_step

TOOL = "tool"  # the kind of the primitives, and of the ops of tool engines


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
class ToolBody:
    """A tool, and the JSON text of its arguments. More of it may follow if it `is_open`."""

    tool: str
    arguments: str
    is_open: bool

    def boundaries(self) -> tuple[str, ...]:
        return ()

    def streams_out(self, variable: str) -> bool:
        return False

    def streams_in(self, variable: str) -> bool:
        return False

    def joins(self, variable: str) -> Specs | None:
        return None


def lower_tool(tool: RunTool, arguments: str, is_open: bool = False) -> Task:
    """The task of one call."""
    if isinstance(tool, ClientTool):
        return lower_step(
            ClientStep(name=tool.name, effects=tool.effects, lease_s=tool.lease_s), ""
        )
    id = f"t_{uuid.uuid4().hex[:12]}"
    primitive = Primitive(
        id=f"{id}/0",
        task=id,
        kind=TOOL,
        resource=tool.resource,
        writes=(f"{id}.out",),
        effects=tool.effects,
        work=1,
        body=ToolBody(tool.name, arguments, is_open),
    )
    return Task(id=id, name=tool.name, resource=tool.resource, primitives=(primitive,))
