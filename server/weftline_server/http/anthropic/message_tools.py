"""The tools of Anthropic's API, and the choice among them. Only those of the client are served.

A tool that Anthropic runs, or whose calls only its models know, is left out, unless the server
refuses such tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import Function, NamedFunction, NamedTool, Tool, ToolChoice
from weftline_server.http.anthropic.message_content import CacheControl
from weftline_server.http.openai.tool_types import OtherTool, type_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool(LooseBody):
    """A tool that the client computes."""

    name: str
    input_schema: dict[str, Any]
    type: Literal["custom"] = "custom"
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None

    def tool(self) -> Tool:
        """The same tool of a chat."""
        function = Function(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
        )
        return Tool(function=function)


def _tool(value: Any) -> str:
    return "Client" if type_of(value) in (None, "custom") else "Other"


AnyTool = Annotated[
    Annotated[OfferedTool, Tag("Client")] | Annotated[OtherTool, Tag("Other")], Discriminator(_tool)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageChoice(LooseBody):
    """Whether a tool is called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def of_chat(self) -> ToolChoice:
        """The same choice of a chat. Raises InvalidRequest for a tool without a name."""
        if self.type == "any":
            return "required"
        if self.type != "tool":
            return self.type
        if self.name is None:
            raise InvalidRequest("tool_choice needs the name of a tool", param="tool_choice")
        return NamedTool(function=NamedFunction(name=self.name))

    @property
    def parallel(self) -> bool | None:
        """Whether an answer may call several tools; None if the client does not say."""
        off = self.disable_parallel_tool_use
        return None if off is None else not off


def own_tools(tools: Iterable[AnyTool], left_out: list[str], refuses: bool) -> tuple[Tool, ...]:
    """The client's tools as those of a chat. The types of the others go to `left_out`.

    Raises InvalidRequest for another one if the server `refuses` them.
    """
    found: list[Tool] = []
    for index, tool in enumerate(tools):
        if isinstance(tool, OfferedTool):
            found.append(tool.tool())
        elif refuses:
            where = f"tools.{index}"
            raise InvalidRequest(
                f"{where}: a tool of type {tool.type[:40]!r} is not served: declare a tool with an "
                "input_schema that does the same, and compute it in the client",
                param=where,
            )
        else:
            left_out.append(tool.type)
    return tuple(found)
