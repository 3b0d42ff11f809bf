"""The tools of POST /v1/responses, and the choice among them. Only functions are served.

A tool of another type is a 400 that names its place and its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Discriminator
from pydantic import Tag as As

from weftline.errors import InvalidRequest
from weftline.tools import Function, NamedFunction, NamedTool, Tool, ToolChoice

_LOOSE = {"extra": "ignore", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTool:
    """A function that the model may call, without the object around it that chats have."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    __pydantic_config__ = _LOOSE

    def tool(self) -> Tool:
        """The same tool of a chat."""
        function = Function(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )
        return Tool(function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTool:
    """A tool of another type. It is refused."""

    type: str

    __pydantic_config__ = _LOOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTool:
    """The function that must be called."""

    type: Literal["function"]
    name: str

    __pydantic_config__ = _LOOSE


def type_of(value: Any) -> Any:
    """The `type` of a body's object, None for what has none."""
    return value.get("type") if isinstance(value, dict) else None


def _tool_of(value: Any) -> str:
    return "ResponseTool" if type_of(value) == "function" else "OtherTool"


ToolOfAnyType = Annotated[
    Annotated[ResponseTool, As("ResponseTool")] | Annotated[OtherTool, As("OtherTool")],
    Discriminator(_tool_of),
]


def _chosen_of(value: Any) -> str:
    return "ChosenTool" if type_of(value) == "function" else "OtherTool"


ChosenOfAnyType = Annotated[
    Annotated[ChosenTool, As("ChosenTool")] | Annotated[OtherTool, As("OtherTool")],
    Discriminator(_chosen_of),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTools:
    """The tools of which one may be called, or with mode `required` must be called."""

    type: Literal["allowed_tools"]
    tools: tuple[ChosenOfAnyType, ...]
    mode: Literal["auto", "required"] = "auto"

    __pydantic_config__ = _LOOSE


def _choice_of(value: Any) -> str:
    if isinstance(value, str):
        return "Mode"
    return "AllowedTools" if type_of(value) == "allowed_tools" else _chosen_of(value)


Choice = Annotated[
    Annotated[Literal["auto", "none", "required"], As("Mode")]
    | Annotated[ChosenTool, As("ChosenTool")]
    | Annotated[AllowedTools, As("AllowedTools")]
    | Annotated[OtherTool, As("OtherTool")],
    Discriminator(_choice_of),
]


def chat_tools(tools: Iterable[ToolOfAnyType], where: str) -> tuple[Tool, ...]:
    """The same tools of a chat. Raises InvalidRequest for the first that is no function."""
    return tuple(
        tool.tool() if isinstance(tool, ResponseTool) else _refuse(tool, f"{where}.{index}")
        for index, tool in enumerate(tools)
    )


def chosen(choice: Choice | None, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that may be called, and the choice of a chat. Raises InvalidRequest."""
    if isinstance(choice, ChosenTool):
        return tools, NamedTool(function=NamedFunction(name=choice.name))
    if isinstance(choice, OtherTool):
        _refuse(choice, "tool_choice")
    if not isinstance(choice, AllowedTools):
        return tools, choice
    names = {_name(tool, index) for index, tool in enumerate(choice.tools)}
    allowed = tuple(tool for tool in tools if tool.function.name in names)
    for name in names - {tool.function.name for tool in allowed}:
        raise InvalidRequest(
            f"tool_choice names {name[:40]!r}, which is not among the tools", param="tool_choice"
        )
    return allowed, choice.mode


def _name(tool: ChosenOfAnyType, index: int) -> str:
    if isinstance(tool, ChosenTool):
        return tool.name
    return _refuse(tool, f"tool_choice.tools.{index}")


def _refuse(tool: OtherTool, where: str) -> NoReturn:
    raise InvalidRequest(
        f"{where}: a tool of type {tool.type[:40]!r} is not served: declare a function that does "
        "the same, and compute it in the client",
        param=where,
    )
