"""Client steps: functions of the client that run between calls of a session's graph.

Inside a session a decorated function that is given a variable does not run at once. It is added to
the graph, and returns the variable of its result. The client runs it when the variables among its
arguments have their values, and sends the result to the server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import MAX_ERROR_CHARS, SetVariable, StepError, to_wire
from weftline.contract.steps import ClientStep
from weftline.sdk.current_session import current_session
from weftline.sdk.variable_base import VariableBase
from weftline.sdk.watch_events import Due, Event, Value

Effects = Literal["none", "idempotent", "once"]


class ClientFunction:
    """A function that the client computes as a step of a graph. Make one with `client_step`."""

    def __init__(
        self, function: Callable[..., Any], name: str, effects: Effects, lease_s: float
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.effects: Effects = effects
        self.lease_s = lease_s

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a step to the current session, and return the variable of its result.

        If no argument is a variable, call the plain function and return its result instead.
        """
        if not any(isinstance(one, VariableBase) for one in (*args, *kwargs.values())):
            return self.function(*args, **kwargs)
        return current_session().client(self, *args, **kwargs)


@overload
def client_step(function: Callable[..., Any], /) -> ClientFunction: ...


@overload
def client_step(
    *, name: str | None = None, effects: Effects = "none", lease_s: float = 60.0
) -> Callable[[Callable[..., Any]], ClientFunction]: ...


def client_step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    effects: Effects = "none",
    lease_s: float = 60.0,
) -> ClientFunction | Callable[[Callable[..., Any]], ClientFunction]:
    """Make a function a step that the client computes. Its arguments may be variables.

    The function may be a coroutine function. It must return a JSON value other than None. If it
    raises an exception, the step fails, and with it everything that reads its result.

    `name` is shown in the graph and defaults to the function's name. `effects` says what running
    the function twice would do: "none", "idempotent" or "once". `lease_s` is in seconds. The step
    fails when this client has had no request open at the server for so long.
    """

    def make(function: Callable[..., Any]) -> ClientFunction:
        shown = getattr(function, "__name__", type(function).__name__)
        return ClientFunction(function, name or shown, effects, lease_s)

    return make if function is None else make(function)


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """A client step of a session, and how to compute it."""

    step: ClientStep
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def out(self) -> str:
        """The variable of its result."""
        assert self.step.out is not None, "the SDK names every output"
        return self.step.out

    def bound(self, values: Mapping[str, Any]) -> Callable[[], Any]:
        """The function with its arguments. `values` has the value of each variable among them."""

        def value(given: Any) -> Any:
            return values[given.id] if isinstance(given, VariableBase) else given

        kwargs = {name: value(given) for name, given in self.kwargs.items()}
        return functools.partial(self.function, *map(value, self.args), **kwargs)


class SentSteps:
    """Client steps that were sent with one submit, and the values that have come for them.

    A step is computed when its values are here and the server has said that the step is due. A
    step that only an untaken side of a branch needs never becomes due.
    """

    def __init__(self, computations: Iterable[Computation]) -> None:
        self._values: dict[str, Any] = {}
        self._left = {one: {*one.step.reads, *one.step.after} for one in computations}
        self._due: set[str] = set()
        self.by_out = {one.out: one for one in self._left}

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables to watch: the inputs and the outputs of the steps.

        The open watch of the outputs tells the server that this client is still there, until the
        last output is ready or has failed.
        """
        inputs = (variable for one in self._left for variable in (*one.step.reads, *one.step.after))
        return tuple(dict.fromkeys((*inputs, *self.by_out)))

    def take_ready(self) -> list[tuple[Computation, Callable[[], Any]]]:
        """The steps that can be computed now. Each step is returned once."""
        ready = [one for one, left in self._left.items() if not left and one.out in self._due]
        for one in ready:
            del self._left[one]
        return [(one, one.bound(self._values)) for one in ready]

    def hear(self, event: Event) -> None:
        """Note that a watched variable has a value, or that a step is due."""
        if isinstance(event, Due):
            self._due.add(event.variable)
        elif isinstance(event, Value):
            self._values[event.variable] = event.value
            for left in self._left.values():
                left.discard(event.variable)


def outcome_of(error: BaseException) -> SetVariable:
    """The message to the server that a step has failed."""
    message = str(error)[:MAX_ERROR_CHARS] or type(error).__name__
    return SetVariable(error=StepError(code=type(error).__name__[:128], message=message))


def result_of(computation: Computation, value: Any) -> SetVariable:
    """The message to the server with a step's result. Raises InvalidRequest for None."""
    if value is None:
        raise InvalidRequest(f"client step {computation.step.name!r} returned None: return JSON")
    return SetVariable(value=to_wire(value))
