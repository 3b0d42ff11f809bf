"""For authors of tools: functions and classes that a weftline server runs as tools of a model.

@tool(effects="none", timeout_s=10)
def search(query: str) -> str:
    "Search the web."
    ...

class Forecast(StreamingTool):
    "The weather of the next days."
    effects = "none"
    parameters = {"location": str, "days": int}

    def argument(self, name, value):
        if name == "location" and "," not in value:
            raise Reject("location has to be 'city, state'")

    def finish(self):
        return forecast(**self.arguments)
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType, NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeGuard, TypeVar

from weftline.contract.tools import Function

Effects = Literal["none", "idempotent", "once"]

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT_S = 30.0
_MARK = "__weftline_tool__"
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class Reject(Exception):
    """Raised by a tool to stop the call. The model gets the message."""


class StreamingTool:
    """A tool that reads its call in parts, while the model writes it.

    `parameters` maps the arguments to their types. Those in `optional` may be left out. Each call
    has an object of its own, in a process of its own. Every method may raise `Reject`, which stops
    the model's turn. `effects` says what running the tool twice would do: "none", "idempotent" (it
    may run again after a failure) or "once". The methods of a tool with "once" are called only when
    the model's turn has ended.
    """

    name: ClassVar[str] = ""
    effects: ClassVar[Effects] = "once"
    timeout_s: ClassVar[float] = TIMEOUT_S
    parameters: ClassVar[Mapping[str, Any]] = {}
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def warm(self) -> None:
        """Called when the model has written the tool's name: open connections here."""

    def argument(self, name: str, value: Any) -> None:
        """Called when the argument `name` is complete, with its value."""

    def line(self, name: str, line: str) -> None:
        """Called for each complete line of a string argument. `line` has no newline at its end."""

    def statement(self, name: str, code: str) -> None:
        """Called for each top-level Python statement of an argument, when the next one begins."""

    def finish(self) -> Any:
        """Called when the call is complete: `self.arguments` has all. Returns the result."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the server knows it: the function that models see, and how it may run."""

    function: Function
    effects: Effects
    timeout_s: float
    streams: bool

    def __post_init__(self) -> None:
        if self.effects not in typing.get_args(Effects):
            raise ValueError(f"effects {self.effects!r} is none of none, idempotent and once")
        if not 0 < self.timeout_s <= 3600:
            raise ValueError(f"timeout_s must be in 0 to 3600, got {self.timeout_s}")

    def told(self) -> dict[str, Any]:
        """The tool as JSON, in the form in which an engine announces it."""
        return {
            "name": self.function.name,
            "description": self.function.description,
            "parameters": self.function.parameters,
            "effects": self.effects,
            "timeout_s": self.timeout_s,
            "streams": self.streams,
        }


@dataclass(frozen=True, slots=True)
class _Marked:
    """The settings that `@tool` was given for a function."""

    name: str | None
    effects: Effects
    timeout_s: float


def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    effects: Effects = "once",
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Make a function a tool. The model sees its name, docstring and annotations.

    `name` defaults to the function's name. `effects` says what running the tool twice would do:
    "none", "idempotent" or "once". A tool with "none" may start before the model's turn has ended.
    `timeout_s` is the longest time of one call, in seconds.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, _Marked(name, effects, timeout_s))
        return function

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True)
class Found:
    """A tool of a module: its description, and the class or function that runs one call."""

    spec: ToolSpec
    make: Callable[[], StreamingTool]


class _Calling(StreamingTool):
    """A plain function as a tool."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def finish(self) -> Any:
        return self._function(**self.arguments)


def tools_in(module: ModuleType) -> Iterator[Found]:
    """The tools that a module defines: functions with `@tool`, and classes of `StreamingTool`."""
    for one in list(vars(module).values()):
        if isinstance(marked := getattr(one, _MARK, None), _Marked):
            yield _found(one, marked)
        elif _is_tool_class(one) and one.__module__ == module.__name__:
            yield Found(_spec_of_class(one), one)


def _is_tool_class(one: Any) -> TypeGuard[type[StreamingTool]]:
    return isinstance(one, type) and issubclass(one, StreamingTool)


def _found(function: Callable[..., Any], marked: _Marked) -> Found:
    return Found(_spec_of_function(function, marked), lambda: _Calling(function))


def spec_of(function: Callable[..., Any]) -> ToolSpec:
    """The description of a function as a tool.

    A function without `@tool` has effects "once" and the timeout TIMEOUT_S. Raises TypeError for
    anything but a function.
    """
    if not inspect.isroutine(function):
        raise TypeError(f"a tool is a function, not {function!r}: streaming tools run in a server")
    marked = getattr(function, _MARK, None)
    return _spec_of_function(
        function, marked if isinstance(marked, _Marked) else _Marked(None, "once", TIMEOUT_S)
    )


def _spec_of_function(function: Callable[..., Any], marked: _Marked) -> ToolSpec:
    hints = typing.get_type_hints(function)
    given = inspect.signature(function).parameters
    needed = [name for name, one in given.items() if one.default is inspect.Parameter.empty]
    described = Function(
        name=marked.name or function.__name__,
        description=inspect.getdoc(function),
        parameters=_schema({name: hints.get(name, Any) for name in given}, needed),
    )
    return ToolSpec(described, marked.effects, marked.timeout_s, streams=False)


def _spec_of_class(cls: type[StreamingTool]) -> ToolSpec:
    needed = [name for name in cls.parameters if name not in cls.optional]
    described = Function(
        name=cls.name or cls.__name__,
        description=inspect.getdoc(cls),
        parameters=_schema(cls.parameters, needed),
    )
    return ToolSpec(described, cls.effects, cls.timeout_s, streams=True)


def _schema(types: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """The JSON schema of arguments with these types. A dict in place of a type is a schema."""
    properties = {name: _schema_of(one) for name, one in types.items()}
    return {"type": "object", "properties": properties, "required": required}


def _schema_of(given: Any) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    if given in _TYPES:
        return {"type": _TYPES[given]}
    origin, inner = typing.get_origin(given), typing.get_args(given)
    if origin is Literal:
        return {"enum": list(inner)}
    if given is list or origin is list:
        return {"type": "array", **({"items": _schema_of(inner[0])} if inner else {})}
    if given is dict or origin is dict:
        return {"type": "object"}
    if origin in (UnionType, typing.Union):
        return {"anyOf": [_schema_of(one) for one in inner]}
    return {"type": "null"} if given is NoneType else {}
