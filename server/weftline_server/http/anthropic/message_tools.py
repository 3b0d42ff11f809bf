"""The tools of Anthropic's API, and the choice among them. Only those of the client are served.

A tool that Anthropic runs, or whose calls only its models know, is left out, unless the server
refuses such tools.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import Function, NamedFunction, NamedTool, Tool, ToolChoice
from weftline_server.http.anthropic.message_content import CacheControl
from weftline_server.http.openai.tool_types import Offer, OtherTool
from weftline_server.http.typed_objects import by_type


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


AnyTool = Annotated[
    Annotated[OfferedTool, Tag("Client")] | Annotated[OtherTool, Tag("Other")],
    by_type({None: "Client", "custom": "Client"}),
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


def offered(tools: Iterable[AnyTool], offer: Offer) -> tuple[Tool, ...]:
    """The client's tools as those of a chat. Raises InvalidRequest for another one if the server
    refuses them."""
    for index, tool in enumerate(tools):
        if isinstance(tool, OfferedTool):
            offer.tools.append(tool.tool())
        else:
            offer.other(tool, f"tools.{index}")
    return tuple(offer.tools)
