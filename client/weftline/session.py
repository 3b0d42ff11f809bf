"""The part of a session that needs no network: the pending calls and their variables."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weftline.errors import InvalidRequest
from weftline.protocol import Call, InOut, Placeholder, Submit

if TYPE_CHECKING:
    from weftline.function import SemanticFunction


@dataclass(frozen=True, slots=True)
class SubmittedCall:
    """The server's answer for one call: its id, and the variable of each output by name."""

    name: str
    call_id: str
    outputs: Mapping[str, str]

    @staticmethod
    def of(body: Mapping[str, Any]) -> SubmittedCall:
        return SubmittedCall(body["name"], body["call_id"], body["outputs"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an application in one request: values by variable, and the session's graph."""

    values: Mapping[str, Any]
    graph: Mapping[str, Any] | None

    @staticmethod
    def of(body: Mapping[str, Any]) -> Answer:
        return Answer(body.get("values", {}), body.get("graph"))


class VariableBase:
    """A named value of a session. It is a future until its call has run."""

    def __init__(self, session: SessionBase[Any], id: str) -> None:
        self.id = id
        self._owner = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __str__(self) -> str:
        raise TypeError(
            f"variable {self.id} has no text here: pass it to a semantic function as it is, "
            "or call .get() first"
        )

    def __format__(self, spec: str) -> str:
        return str(self)


V = TypeVar("V", bound=VariableBase)

_current: ContextVar[SessionBase[Any] | None] = ContextVar("weftline_session", default=None)


def current_session() -> SessionBase[Any]:
    """The session of the innermost `with` block. Raises RuntimeError outside of any."""
    session = _current.get()
    if session is None:
        raise RuntimeError(
            "semantic functions are called inside a session: "
            "`with Client() as client, client.session():`"
        )
    return session


class SessionBase(ABC, Generic[V]):
    """Collects calls until they are sent. `id` is the server's name for the session."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.closed = False
        self._pending: list[Call] = []
        self._tokens: list[Token[SessionBase[Any] | None]] = []

    @abstractmethod
    def _variable(self, id: str) -> V:
        """A variable of the class that this session uses."""

    def variable(self, id: str | None = None) -> V:
        """A variable of this session, with the given id or a new one."""
        return self._variable(f"v_{uuid.uuid4().hex[:16]}" if id is None else id)

    def add_call(self, function: SemanticFunction, given: Mapping[str, Any]) -> list[V]:
        """Add a call of `function` to the next submit. Returns the variables of its outputs."""
        placeholders = [
            self._input(name, given[name], mark.transforms)
            for name, mark in function.inputs.items()
        ]
        made = []
        for name, mark in function.outputs.items():
            target = given.get(name)
            if target is None:
                target = self.variable()
            elif not isinstance(target, VariableBase):
                raise InvalidRequest(
                    f"output {name!r} of {function.name} takes a variable, not a value", param=name
                )
            made.append(self._variable(target.id))
            placeholders.append(
                Placeholder(
                    name=name,
                    in_out=InOut.OUT,
                    semantic_var_id=target.id,
                    transforms=tuple(dict(t) for t in mark.transforms),
                    sampling=mark.sampling,
                )
            )
        call = Call(
            name=function.name,
            prompt=function.prompt,
            placeholders=tuple(placeholders),
            model=function.model,
            criteria=function.criteria,
        )
        self._pending.append(call)
        return made

    def _input(self, name: str, value: Any, transforms: Sequence[Mapping[str, Any]]) -> Placeholder:
        specs = tuple(dict(t) for t in transforms)
        if not isinstance(value, VariableBase):
            return Placeholder(name=name, in_out=InOut.IN, value=value, transforms=specs)
        if value._owner is not self:
            raise InvalidRequest(
                f"input {name!r} is a variable of another session: pass its .get()", param=name
            )
        return Placeholder(name=name, in_out=InOut.IN, semantic_var_id=value.id, transforms=specs)

    def _take_pending(self, get: tuple[str, ...] = ()) -> Submit | None:
        """The submit of the pending calls, if any. Its answer shall hold the variables of `get`."""
        if not self._pending:
            return None
        calls, self._pending = tuple(self._pending), []
        return Submit(session_id=self.id, calls=calls, get=get)

    def _enter(self) -> None:
        self._tokens.append(_current.set(self))

    def _exit(self) -> None:
        _current.reset(self._tokens.pop())
