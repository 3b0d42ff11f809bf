"""The tools of OpenAI's chats and responses, and the choice among them. Only functions are served.

A custom tool of a response, whose input is a text, is a function of one text, which a grammar may
hold. A tool that OpenAI
runs, or that only its own models know, is left out of a response's tools, unless the server refuses
such tools. A tool of another type is a 400 that names its place and its type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Tag

from weftline.contract.bodies import LooseBody
from weftline.contract.constraints import check_constraint
from weftline.contract.errors import InvalidRequest
from weftline.contract.tools import Function, NamedFunction, NamedTool, Tool, ToolChoice
from weftline_server.http.typed_objects import by_type

Mode = Literal["auto", "none", "required"]
AllowedMode = Literal["auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTool(LooseBody):
    """A function that the model may call, without the object around it that chats have."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

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
class CustomFormat(LooseBody):
    """The form of a custom tool's input. A grammar has its `definition` in the `syntax` lark or
    regex."""

    type: str
    syntax: str | None = None
    definition: str | None = None


INPUT = "input"  # the parameter of the function that a custom tool becomes


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomTool(LooseBody):
    """A tool of the client's whose input is a text. The model knows it as a function of a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None

    def tool(self, where: str) -> Tool:
        """The function of a chat. Raises InvalidRequest for a form that is not served."""
        form, text, grammar = self.format, {"type": "string"}, None
        description, strict = self.description, None
        match form:
            case None | CustomFormat(type="text"):
                pass
            case CustomFormat(type="grammar", syntax="regex", definition=str(pattern)) if pattern:
                # The model reads the pattern in the schema.
                text, strict = {**text, "pattern": f"^(?:{pattern})$"}, True
                check_constraint({"regex": pattern}, f"{where}.format.definition")
            case CustomFormat(type="grammar", syntax="lark", definition=str(lark)) if lark:
                check_constraint({"grammar": lark}, f"{where}.format.definition")
                grammar = lark
                description = (
                    f"{description or ''}\nThe input follows this grammar in Lark:\n{lark}"
                )
            case _:
                raise InvalidRequest(
                    f"{where}.format: a custom tool's format is a text, or a grammar with the "
                    "syntax lark or regex and its definition",
                    param=f"{where}.format",
                )
        parameters = {
            "type": "object",
            "properties": {INPUT: text},
            "required": [INPUT],
            "additionalProperties": False,
        }
        function = Function(
            name=self.name,
            description=description and description.strip(),
            parameters=parameters,
            strict=strict,
            grammar=grammar,
        )
        return Tool(function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTool(LooseBody):
    """A tool of another type, which is refused."""

    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTool(LooseBody):
    """The function or the custom tool that must be called."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    @property
    def whole_name(self) -> str:
        """The name under which the model knows the function."""
        return grouped(self.namespace, self.name)


# Types that OpenAI runs, or whose calls only its models write; dated ones begin with them. A client
# that offers one can do without it.
HOSTED = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
)


def grouped(namespace: str | None, name: str) -> str:
    """The name under which the model knows a function of a group."""
    if namespace is None:
        return name
    return f"{namespace.removesuffix('__')}__{name}"


_FUNCTION = {"function": "Function"}
_CHOOSABLE = _FUNCTION | {"custom": "Function"}
_IN_CHATS = _FUNCTION | {None: "Function"}  # chats may leave out the type of a function
_ALLOWED = {"allowed_tools": "Allowed"}

Other = Annotated[OtherTool, Tag("Other")]
_Grouped = Annotated[Annotated[ResponseTool, Tag("Function")] | Other, by_type(_FUNCTION)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceTool(LooseBody):
    """A group of functions. The model knows each by the names of the group and of the function."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: tuple[_Grouped, ...]


AnyResponseTool = Annotated[
    Annotated[ResponseTool, Tag("Function")]
    | Annotated[NamespaceTool, Tag("Namespace")]
    | Annotated[CustomTool, Tag("Custom")]
    | Other,
    by_type(_FUNCTION | {"namespace": "Namespace", "custom": "Custom"}),
]
AnyChatTool = Annotated[Annotated[Tool, Tag("Function")] | Other, by_type(_IN_CHATS)]
AnyChosen = Annotated[Annotated[ChosenTool, Tag("Function")] | Other, by_type(_CHOOSABLE)]
AnyNamed = Annotated[Annotated[NamedTool, Tag("Function")] | Other, by_type(_IN_CHATS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTools(LooseBody):
    """The tools of which any may be called, or with mode `required` must be called."""

    type: Literal["allowed_tools"]
    tools: tuple[AnyChosen, ...]
    mode: AllowedMode = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedNames(LooseBody):
    """The tools of a chat of which any may be called, or with mode `required` must be called."""

    tools: tuple[AnyNamed, ...]
    mode: AllowedMode = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedInChat(LooseBody):
    """The choice among some tools of a chat."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


ResponseChoice = Annotated[
    Annotated[Mode, Tag("Mode")]
    | Annotated[ChosenTool, Tag("Function")]
    | Annotated[AllowedTools, Tag("Allowed")]
    | Other,
    by_type(_CHOOSABLE | _ALLOWED, text="Mode"),
]
ChatChoice = Annotated[
    Annotated[Mode, Tag("Mode")]
    | Annotated[NamedTool, Tag("Function")]
    | Annotated[AllowedInChat, Tag("Allowed")]
    | Other,
    by_type(_IN_CHATS | _ALLOWED, text="Mode"),
]


def offered(tools: Iterable[Tool | OtherTool], where: str) -> tuple[Tool, ...]:
    """The functions of a chat. Raises InvalidRequest for the first tool that is none."""
    found: list[Tool] = []
    for index, tool in enumerate(tools):
        if isinstance(tool, OtherTool):
            _refuse(tool, f"{where}.{index}")
        found.append(tool)
    return tuple(found)


@dataclass(slots=True)
class Offer:
    """The tools of a response or of Anthropic's messages as functions of a chat.

    `groups` are the namespace and the own name of each function of a group, by its whole name.
    `customs` are the names of custom tools. `left_out` are the types of tools that are `hosted`,
    unless the server `refuses` them. Their names may go on as these do.
    """

    refuses: bool = False
    hosted: tuple[str, ...] = HOSTED
    tools: list[Tool] = field(default_factory=list)
    groups: dict[str, tuple[str, str]] = field(default_factory=dict)
    customs: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def read(
        self, tools: Iterable[ResponseTool | NamespaceTool | CustomTool | OtherTool], where: str
    ) -> None:
        """Take more tools. Raises InvalidRequest for the first that is not served."""
        for index, tool in enumerate(tools):
            place = f"{where}.{index}"
            match tool:
                case ResponseTool():
                    self.tools.append(tool.tool())
                case NamespaceTool():
                    self._group(tool, place)
                case CustomTool():
                    self.tools.append(tool.tool(place))
                    self.customs.add(tool.name)
                case OtherTool():
                    self.other(tool, place)

    def other(self, tool: OtherTool, where: str) -> None:
        """Leave out a hosted tool. Raises InvalidRequest for any other, or if they are refused."""
        if self.refuses or not tool.type.startswith(self.hosted):
            _refuse(tool, where)
        self.left_out.append(tool.type)

    def _group(self, group: NamespaceTool, where: str) -> None:
        """What the group is for stands in the description of its first function."""
        about = f"{group.description}\n" if group.description else ""
        for index, tool in enumerate(group.tools):
            if isinstance(tool, OtherTool):
                _refuse(tool, f"{where}.tools.{index}")
            name = grouped(group.name, tool.name)
            says = f"{about}{tool.description or ''}".strip() or None
            self.groups[name] = (group.name, tool.name)
            self.tools.append(replace(tool, name=name, description=says).tool())
            about = ""


def chosen(
    choice: ResponseChoice | ChatChoice | None, tools: tuple[Tool, ...]
) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that may be called, and the choice of a call. Raises InvalidRequest."""
    match choice:
        case ChosenTool():
            return tools, NamedTool(function=NamedFunction(name=choice.whole_name))
        case OtherTool():
            _refuse(choice, "tool_choice")
        case AllowedTools():
            return _allowed(choice.tools, "tool_choice.tools", tools), choice.mode
        case AllowedInChat(allowed_tools=names):
            where = "tool_choice.allowed_tools.tools"
            return _allowed(names.tools, where, tools), names.mode
    return tools, choice


def _allowed(
    names: Iterable[ChosenTool | NamedTool | OtherTool], where: str, tools: tuple[Tool, ...]
) -> tuple[Tool, ...]:
    """The tools that `names` names, in their order among `tools`."""
    wanted: set[str] = set()
    for index, one in enumerate(names):
        if isinstance(one, OtherTool):
            _refuse(one, f"{where}.{index}")
        wanted.add(one.whole_name if isinstance(one, ChosenTool) else one.function.name)
    allowed = tuple(tool for tool in tools if tool.function.name in wanted)
    for name in sorted(wanted - {tool.function.name for tool in allowed}):
        raise InvalidRequest(
            f"tool_choice names {name[:40]!r}, which is not among the tools", param="tool_choice"
        )
    return allowed


def _refuse(tool: OtherTool, where: str) -> NoReturn:
    raise InvalidRequest(
        f"{where}: a tool of type {tool.type[:40]!r} is not served: declare a function that does "
        "the same, and compute it in the client",
        param=where,
    )
