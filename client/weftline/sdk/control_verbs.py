"""The methods of a session that add functions, branches and loops to its graph."""

from __future__ import annotations

import inspect
import textwrap
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from weftline.contract.errors import InvalidRequest
from weftline.contract.predicates import Predicate
from weftline.contract.protocol import Call
from weftline.contract.steps import (
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
from weftline.sdk.client_steps import ClientFunction, Computation
from weftline.sdk.variable_base import V, VariableBase

T = TypeVar("T")


@dataclass(slots=True)
class SessionState:
    """The session's `id` at the server, and the calls and steps that the next submit will have.

    `computations` are those of the client steps among them. `failures` has what client steps
    raised, by variable. A synchronous session shares this object with the asynchronous one that
    sends its requests.
    """

    id: str
    closed: bool = False
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    computations: list[Computation] = field(default_factory=list)
    failures: dict[str, BaseException] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what was not sent."""
        self.calls, self.steps, self.computations = [], [], []


class ControlVerbs(ABC, Generic[V]):
    """Adds steps to the next submit of a session. Each method returns the variable of its step."""

    def __init__(self, state: SessionState) -> None:
        self.state = state

    @abstractmethod
    def _variable(self, id: str) -> V:
        """A variable of the class that this session uses."""

    def variable(self, id: str | None = None) -> V:
        """A variable of this session. Without an `id` the client makes a new one."""
        return self._variable(f"v_{uuid.uuid4().hex[:16]}" if id is None else id)

    def client(
        self, function: ClientFunction, *args: Any, after: Sequence[V] = (), **kwargs: Any
    ) -> V:
        """Run a function in this process when the variables among its arguments are ready.

        Make the function with `client_step`. It must return a JSON value other than None. The step
        also waits for the variables of `after`, but does not read them.
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
        self.state.steps.append(step)
        self.state.computations.append(Computation(step, function.function, args, kwargs))
        return made

    def function(
        self,
        name: str,
        *,
        effects: Literal["none", "idempotent", "once"] = "once",
        after: Sequence[V] = (),
        **args: Any,
    ) -> V:
        """Run a function that the server's operator has configured under `name`.

        `args` are the function's arguments by name: values, or variables of this session.
        `effects` says what running the function twice would do: "none", "idempotent" or "once". A
        step with "once" is never repeated. The step also waits for the variables of `after`.
        """
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
        self.state.steps.append(step)
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
        """Run Python code in the server's sandbox.

        `code` is a text that defines a function, or a function of yours. Of a function only its own
        source is sent, so it must contain its imports and cannot use other names of its module.
        `args` are its arguments by name: values, or variables of this session. The server's
        operator allows such code with a table `[[function]]`, whose name is `function`. The step
        also waits for the variables of `after`. Raises InvalidRequest for an argument named `code`.
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
        """Choose one of several variables by the value of `on`.

        `cases` are pairs of a predicate and a variable. The result has the value of the first case
        whose predicate holds for `on`, or else the value of `default`. The calls and steps that
        only the other cases need are skipped. A predicate is data, such as
        `{"op": "contains", "value": "number"}`. It is applied to `on` after `transforms`.
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
        self.state.steps.append(step)
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
        """Run `body` for each item of a list, for all items at the same time.

        `over` is a list, or a variable whose value after `transforms` is a list. `body` is called
        once, with a variable that stands for an item, and returns the variable of the item's
        result. The server runs its calls and steps for every item. The value of the step is the
        list of results in the order of the items. The step fails if the list has more than
        `max_items` items. `on_error` says what happens when an item fails: "fail" fails the step,
        "skip" leaves the item out, and "value" puts `otherwise` in its place.
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
        self.state.steps.append(step)
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
        """Run `body` in rounds: it turns a value, at first that of `carry`, into the next value.

        `body` is called once, with a variable that stands for the value of the round before. It
        returns two variables: the next value, and the value that the predicate `until` is applied
        to after `transforms`. The loop ends when the predicate holds, or after `most` rounds. Its
        value is the next value of the last round.
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
        self.state.steps.append(step)
        return made

    @abstractmethod
    def _enter(self) -> None:
        """Make this session the current one."""

    @abstractmethod
    def _exit(self) -> None:
        """Undo `_enter`."""

    def _record(self, build: Callable[[], T]) -> tuple[Body, T]:
        """Call `build`, and return the calls and steps that it adds to this session as a body.

        The calls and steps of the body do not become part of the next submit.
        """
        state = self.state
        calls, steps, sent = state.calls, state.steps, len(state.computations)
        state.calls, state.steps = [], []
        self._enter()
        try:
            made = build()
            return Body(calls=tuple(state.calls), steps=tuple(state.steps)), made
        finally:
            self._exit()
            state.calls, state.steps = calls, steps
            del state.computations[sent:]

    def _check_own(self, variable: VariableBase) -> None:
        if variable.owner is not self:
            raise InvalidRequest("a variable of another session: pass its .get()", param="in")
