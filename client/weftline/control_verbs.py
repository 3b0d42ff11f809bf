"""The verbs of a session for steps that its graph turns on: those of the client."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from weftline.computations import Computation
from weftline.errors import InvalidRequest
from weftline.steps import ClientStep, Step
from weftline.variable import V, VariableBase

if TYPE_CHECKING:
    from weftline.client_function import ClientFunction


class ControlVerbs(ABC, Generic[V]):
    """Adds steps to the next submit of a session. Each verb returns the variable of its result."""

    def __init__(self) -> None:
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

    def _check_own(self, variable: VariableBase) -> None:
        if variable._owner is not self:
            raise InvalidRequest("a variable of another session: pass its .get()", param="in")
