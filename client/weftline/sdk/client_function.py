"""Client steps: functions of the client that run between calls of a session's graph.

Inside a session a decorated function that is given a variable does not run at once. It is added to
the graph, and returns the variable of its result. The client runs it when the variables among its
arguments have their values, and sends the result to the server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, overload

from weftline.sdk.session import current_session
from weftline.sdk.variable import VariableBase

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
