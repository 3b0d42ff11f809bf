"""The verbs of a session for steps of the client, and for steps that decide what runs."""

from __future__ import annotations

import inspect
import textwrap
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from weftline.computations import Computation
from weftline.errors import InvalidRequest
from weftline.predicates import Predicate
from weftline.protocol import Call
from weftline.steps import (
    Body,
    Branch,
    Case,
    ClientStep,
    Each,
    FunctionStep,
    Loop,
    Source,
    Step,
    Until,
)
from weftline.variable import V, VariableBase

if TYPE_CHECKING:
    from weftline.client_function import ClientFunction


T = TypeVar("T")


class ControlVerbs(ABC, Generic[V]):
    """Adds steps to the next submit of a session. Each verb returns the variable of its result."""

    def __init__(self) -> None:
        self._pending: list[Call] = []
        self._pending_steps: list[Step] = []
        self._computations: list[Computation] = []  # of the pending client steps

    @abstractmethod
    def _variable(self, id: str) -> V:
        """A variable of the class that this session uses."""

    def variable(self, id: str | None = None) -> V:
        """A variable of this session, with the given id or a new one."""
        return self._variable(f"v_{uuid.uuid4().hex[:16]}" if id is None else id)

    def client(
        self, function: ClientFunction, *args: Any, after: Sequence[V] = (), **kwargs: Any
    ) -> V:
        """Run a function of this client when the variables among its arguments are ready.

        Make the function with `client_step`. Its result is a JSON value.
        """
        made = self.variable()
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, VariableBase)]
        for one in given:
            self._check_own(one)
        step = ClientStep(
            name=function.name,
            reads=tuple(dict.fromkeys(one.id for one in given)),
            out=made.id,
            after=tuple(one.id for one in after),
            effects=function.effects,
            lease_s=function.lease_s,
        )
        self._pending_steps.append(step)
        self._computations.append(Computation(step, function.function, args, kwargs))
        return made

    def function(
        self,
        name: str,
        *,
        effects: Literal["none", "idempotent", "once"] = "once",
        after: Sequence[V] = (),
        **args: Any,
    ) -> V:
        """The result of a function of the server's operator, given values or variables."""
        made = self.variable()
        for one in args.values():
            if isinstance(one, VariableBase):
                self._check_own(one)
        step = FunctionStep(
            name=name,
            function=name,
            args={
                key: Source(var=one.id) if isinstance(one, VariableBase) else Source(value=one)
                for key, one in args.items()
            },
            out=made.id,
            after=tuple(one.id for one in after),
            effects=effects,
        )
        self._pending_steps.append(step)
        return made

    def native(
        self,
        code: str | Callable[..., Any],
        /,
        *,
        function: str = "python",
        after: Sequence[V] = (),
        **args: Any,
    ) -> V:
        """The result of Python code that runs in the server's sandbox, given values or variables.

        The code is a text that defines a function, or a function whose source is sent: nothing
        around it goes along. The server's operator allows this in a table `[[function]]`, whose
        name is `function`.
        """
        if "code" in args:
            raise InvalidRequest("'code' names the code itself: rename the argument", param="code")
        source = code if isinstance(code, str) else textwrap.dedent(inspect.getsource(code))
        return self.function(function, effects="none", after=after, code=source, **args)

    def branch(
        self,
        on: V,
        cases: Sequence[tuple[Predicate, V]],
        default: V,
        *,
        transforms: Sequence[Mapping[str, Any]] = (),
    ) -> V:
        """The variable of the first case whose predicate holds for `on`, else `default`.

        Of the other sides only that runs which something else needs. A predicate is data, such as
        `{"op": "contains", "value": "number"}`. It looks at `on` after `transforms`.
        """
        for one in (on, default, *(side for _, side in cases)):
            self._check_own(one)
        made = self.variable()
        step = Branch(
            name="branch",
            on=Source(var=on.id, transforms=tuple(map(dict, transforms))),
            cases=tuple(Case(when=dict(when), take=side.id) for when, side in cases),
            default=default.id,
            out=made.id,
        )
        self._pending_steps.append(step)
        return made

    def each(
        self,
        over: V | Sequence[Any],
        body: Callable[[V], V],
        *,
        max_items: int = 32,
        on_error: Literal["fail", "skip", "value"] = "fail",
        otherwise: Any = None,
        transforms: Sequence[Mapping[str, Any]] = (),
        name: str = "each",
    ) -> V:
        """The list of what `body` makes of each item of a list, all at the same time.

        `body` is called once, with a variable that stands for an item. Its calls and steps run for
        every item. With `on_error` an item that fails fails all, is left out, or counts as
        `otherwise`.
        """
        if isinstance(over, VariableBase):
            self._check_own(over)
            source = Source(var=over.id, transforms=tuple(map(dict, transforms)))
        else:
            source = Source(value=list(over))
        item, made = self.variable(), self.variable()
        recorded, last = self._record(lambda: body(item))
        step = Each(
            name=name,
            over=source,
            item=item.id,
            body=recorded,
            collect={last.id: made.id},
            max_items=max_items,
            on_error=on_error,
            otherwise=otherwise,
        )
        self._pending_steps.append(step)
        return made

    def loop(
        self,
        carry: V,
        body: Callable[[V], tuple[V, V]],
        *,
        until: Predicate,
        most: int,
        transforms: Sequence[Mapping[str, Any]] = (),
        name: str = "loop",
    ) -> V:
        """What `body` makes of `carry`, again and again, `most` times at most.

        `body` is called once, with a variable that stands for the value of the round before. It
        returns the variable of the next value, and the one that `until` looks at after
        `transforms`. When the predicate holds the loop has that next value.
        """
        self._check_own(carry)
        before, made = self.variable(), self.variable()
        recorded, (after, asked) = self._record(lambda: body(before))
        step = Loop(
            name=name,
            carry={before.id: carry.id},
            next={before.id: after.id},
            body=recorded,
            until=Until(on=asked.id, when=dict(until), transforms=tuple(map(dict, transforms))),
            most=most,
            out=made.id,
        )
        self._pending_steps.append(step)
        return made

    @abstractmethod
    def _enter(self) -> None:
        """Make this session the current one."""

    @abstractmethod
    def _exit(self) -> None:
        """Undo `_enter`."""

    def _record(self, build: Callable[[], T]) -> tuple[Body, T]:
        """What `build` adds to this session, as a body instead of a part of the next submit."""
        calls, steps, sent = self._pending, self._pending_steps, len(self._computations)
        self._pending, self._pending_steps = [], []
        self._enter()
        try:
            made = build()
            return Body(calls=tuple(self._pending), steps=tuple(self._pending_steps)), made
        finally:
            self._exit()
            self._pending, self._pending_steps = calls, steps
            del self._computations[sent:]

    def _check_own(self, variable: VariableBase) -> None:
        if variable._owner is not self:
            raise InvalidRequest("a variable of another session: pass its .get()", param="in")
