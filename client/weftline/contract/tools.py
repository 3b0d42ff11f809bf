"""Tools in OpenAI's JSON shape: those that a call may use, and those that an assistant called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from weftline.contract.bodies import LooseBody, StrictBody
from weftline.contract.constraints import check_constraint, check_references, check_schema
from weftline.contract.errors import InvalidRequest
from weftline.contract.lease import check_lease

MAX_TOOLS = 128
MAX_NAME_CHARS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(LooseBody):
    """A function that the model may call. `parameters` is a JSON schema of its arguments.

    `strict` constrains the arguments to the schema, also where the model may choose not to call.
    So does `grammar`, which is the Lark grammar of the text that is the only argument.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name[:40]!r} is not a function's name: use 1 to 128 letters, digits or "
                "'_-.'",
                param="tools",
            )
        check_schema(self.parameters, "tools")
        if self.strict:
            check_references(self.parameters, "tools")
        if self.grammar is not None:
            check_constraint({"grammar": self.grammar}, "tools")
            if self.argument is None:
                raise InvalidRequest(
                    f"function {self.name!r} has a grammar, so it must have one parameter, of type "
                    "string",
                    param="tools",
                )

    @property
    def argument(self) -> str | None:
        """The name of the only parameter, if that is a text."""
        properties = (self.parameters or {}).get("properties")
        if not isinstance(properties, dict) or list(properties.values()) != [{"type": "string"}]:
            return None
        return str(*properties)

    @property
    def is_held(self) -> bool:
        """Whether calls are held to their form where the model may choose not to call."""
        return bool(self.strict) or self.grammar is not None

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments. A function without parameters takes an empty object."""
        return self.parameters or {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(LooseBody):
    """A tool, which is a function."""

    function: Function
    type: Literal["function"] = "function"

    def to_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        return {"type": "function", "function": {**function, "parameters": self.function.schema}}

    def to_request(self) -> dict[str, Any]:
        """The tool as in a request of OpenAI's API, which has no grammars of functions. What the
        client has not set is not in it."""
        names = [one.name for one in fields(self.function) if one.name != "grammar"]
        function = {name: getattr(self.function, name) for name in names}
        given = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": given}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool(StrictBody):
    """A tool of an agent's run that the client computes.

    `effects` says what running it twice would do. The run fails when a call of the tool is due and
    the client has had no request open for `lease_s` seconds.
    """

    name: str
    effects: Literal["none", "idempotent", "once"] = "once"
    lease_s: float = 60.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name[:40]!r} is not a function's name", param="client_tools"
            )
        check_lease(self.lease_s, "client_tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """A tool that an engine of the server runs, which is called `engine` there.

    `effects` says what running the tool twice would do. A tool that `streams` takes its call piece
    by piece. With `code` it takes the blocks of code in an answer as this argument.
    """

    name: str
    engine: str
    effects: Literal["none", "idempotent", "once"] = "once"
    streams: bool = False
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFunction(LooseBody):
    """The function of a tool call, and its arguments as JSON text. No arguments are an empty
    object, however a client writes them."""

    name: str
    arguments: str = "{}"

    def __post_init__(self) -> None:
        if self.arguments.strip() in ("", "null"):
            object.__setattr__(self, "arguments", "{}")
        if len(self.name) > MAX_NAME_CHARS:
            raise InvalidRequest(
                f"a called function's name has at most {MAX_NAME_CHARS} characters",
                param="tool_calls",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(LooseBody):
    """A tool call in an assistant's message."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFunction(LooseBody):
    """The name of a function that the model must call."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTool(LooseBody):
    """The tool that the model must call."""

    function: NamedFunction
    type: Literal["function"] = field(default="function")


ToolChoice = Literal["auto", "none", "required"] | NamedTool | None


def check_tools(tools: tuple[Tool, ...]) -> None:
    """Raise InvalidRequest for too many tools, or two with the same name."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"a call may have at most {MAX_TOOLS} tools", param="tools")
    names = [tool.function.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"tool {name!r} is declared twice", param="tools")


def check_choice(choice: ToolChoice, tools: tuple[Tool, ...]) -> None:
    """Raise InvalidRequest if `choice` needs a tool that is not among `tools`, or that cannot be
    forced because its schema is not whole."""
    if isinstance(choice, NamedTool):
        if choice.function.name not in {tool.function.name for tool in tools}:
            raise InvalidRequest(
                f"tool_choice names {choice.function.name[:40]!r}, which is not among the tools",
                param="tool_choice",
            )
    elif choice == "required" and not tools:
        raise InvalidRequest("tool_choice 'required' needs tools: give some", param="tool_choice")
    if isinstance(choice, NamedTool) or choice == "required":
        for tool in tools:
            check_references(tool.function.parameters, "tools")
