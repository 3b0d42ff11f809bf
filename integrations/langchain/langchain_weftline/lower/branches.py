"""RunnableBranch and functions that choose: both sides are in the graph, and one is skipped.

The server decides where the conditions are predicates on its values, and where the client would
run nothing of any side. Otherwise the client fetches the value and decides.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from langchain_core.runnables import RunnableBranch, RunnableLambda

from langchain_weftline.lower.calls import Calls, Guard
from langchain_weftline.lower.checks import Checks
from langchain_weftline.lower.choices import BRANCHES, Choices, Decision
from langchain_weftline.lower.conditions import (
    Condition,
    Truth,
    both,
    checked,
    condition_of,
    truth_in,
    truth_of,
)
from langchain_weftline.lower.maps import EachDraft
from langchain_weftline.lower.pure import Decide, Evaluation, Part, Routed, apply_pure
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.server_parts import quietly
from langchain_weftline.lower.steps import Fetch, Handler, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    CannotCompile,
    Local,
    has_unknown,
    is_symbolic,
)


class Branches:
    """Lowers RunnableBranch. Where `decides` is not set, the client takes every decision."""

    def __init__(
        self,
        lowering: Lowerer,
        checks: Checks,
        mint: Callable[[], str],
        calls: Calls,
        searches: Searches,
        *,
        decides: bool,
    ) -> None:
        self._lowering = lowering
        self._checks = checks
        self._mint = mint
        self._calls = calls
        self._searches = searches
        self._choices = Choices(mint, searches)
        self._decides = decides

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {RunnableBranch: self._branch}

    def _branch(self, step: Step, value: Any) -> Steps:
        """The conditions get the value itself, and the side that is taken gets variables."""
        reason = ""
        if self._decides and not self._lowering.mode.is_ahead and is_symbolic(value):
            tests = [getattr(test, "func", None) for test, _ in step.runnable.branches]
            try:
                with self._lowering.attempt():
                    claimed = self._checks.claim(value, *tests, unread=True)
                    conditions, side = self._conditions(step, value)
                    made = self._in_server(step, value, conditions, side) if conditions else None
            except CannotCompile as error:
                reason = f": {error.reason}"
            else:
                yield from self._checks.run(claimed)
                if conditions:
                    return made
                # The client has all that the conditions look at.
                return (yield from self._lowering.step(step.of(side), value))
        seen = value
        if is_symbolic(value):
            why = f"its conditions need a value that the server makes{reason}"
            self._lowering.note(step, why)
            seen = yield Fetch(value)
        for condition, runnable in step.runnable.branches:
            met = yield from self._lowering.step(step.of(condition), seen)
            if has_unknown(met):
                return (yield from self._any_branch(step, value))
            if is_symbolic(met):
                met = yield Fetch(met)
            if met:
                return (yield from self._lowering.step(step.of(runnable), value))
        return (yield from self._lowering.step(step.of(step.runnable.default), value))

    def _any_branch(self, step: Step, value: Any) -> Steps:
        """All branches, for an explanation. Before a run it is not known which branch is taken."""
        if self._lowering.mode.is_ahead:
            return UNKNOWN
        ways = [runnable for _, runnable in step.runnable.branches]
        for number, runnable in enumerate(ways, 1):
            yield from self._lowering.step(step.of(runnable, f"branch {number}"), value)
        default = step.of(step.runnable.default, "default")
        return (yield from self._lowering.step(default, value))

    def _in_server(
        self, step: Step, value: Any, conditions: Sequence[tuple[Condition, Any]], default: Any
    ) -> Any:
        """The value of the branch. Raises CannotCompile where the server cannot decide.

        A side is a runnable, or a value that is `Chosen`.
        """
        if _has_local(value):
            raise CannotCompile(step.runnable, "it gets a value of a step of the client")
        decision = self._choices.decision([condition for condition, _ in conditions], step.path)
        self._lowering.note(step, BRANCHES, in_server=True)
        ways = [step.of(way, f"branch {at}") for at, (_, way) in enumerate(conditions, 1)]
        ways.append(step.of(default, "default"))
        branch, sides = self._sides(ways, value, decision)
        return self._choices.take(decision, sides, step.path, branch)

    def _conditions(self, step: Step, value: Any) -> tuple[list[tuple[Condition, Any]], Any]:
        """The conditions that the server has to check, and the side if none of them holds."""
        found: list[tuple[Condition, Any]] = []
        for condition, runnable in step.runnable.branches:
            truth = self._truth(step.of(condition), value)
            if truth is True:
                return found, runnable
            if isinstance(truth, Condition):
                found.append((truth, runnable))
        return found, step.runnable.default

    def _truth(self, step: Step, value: Any) -> Truth:
        condition = step.runnable
        is_lambda = type(condition) is RunnableLambda and not hasattr(condition, "afunc")
        function = getattr(condition, "func", None)
        if is_lambda and isinstance(function, FunctionType):
            try:
                return condition_of(function, value)
            except CannotCompile:
                raise
            except Exception as error:  # the plain chain raises it
                raise CannotCompile(condition, "its condition fails") from error
        return truth_of(quietly(self._lowering.step(step, value)), condition)

    def _sides(self, ways: Sequence[Step], value: Any, decision: Decision) -> tuple[str, list[Any]]:
        """The branch's variable, and what each side gives. A side's calls are guarded."""
        branch = self._mint()
        sides: list[Any] = []
        unknown, more = self._calls.unknown, list[int]()
        for number, way in enumerate(ways):
            before, steps_before = len(self._calls.drafts), len(self._searches.drafts)
            if isinstance(way.runnable, Chosen):
                sides.append(way.runnable.value)
                more.append(0)
                continue
            sides.append(quietly(self._lowering.step(way, value)))
            if any(isinstance(draft, EachDraft) for draft in self._searches.drafts[steps_before:]):
                raise CannotCompile(way.runnable, "a side has a list whose length is not known")
            whens = decision.whens
            when = (*({"op": "not", "of": one} for one in whens[:number]), *whens[number:][:1])
            for draft in self._calls.drafts[before:]:
                self._calls.guard(draft.var, Guard(branch, number, decision.on, when))
            more.append(self._calls.unknown - unknown)
            self._calls.unknown = unknown
        self._calls.unknown = unknown + min(more)  # one side runs
        return branch, sides

    def decide(self, step: Step, value: Any) -> Decide | None:
        """How the conditions of the function `step` decide. None where the client decides."""
        if self._lowering.mode.is_ahead or _has_local(value):
            return None

        def decide(on: Evaluation, test: ast.expr, then: Part, other: Part) -> Any:
            truth = checked(truth_in(on, test))
            if not isinstance(truth, Condition):
                return then() if truth else other()
            names, sides = dict(on.names), []
            for part in (then, other):
                on.names = dict(names)
                sides.append(_certain(on, part))
            on.names = names
            if any(isinstance(side, (Routed, ChainChoice)) for side in sides):
                return ChainChoice(truth, *sides)
            decision = self._choices.decision([truth], step.path, sides)
            return self._choices.take(decision, sides, step.path)

        return decide

    def routed(self, step: Step, value: Any, choice: ChainChoice) -> Steps:
        """The result of a function that chooses a chain."""
        *cases, (_, default) = choice.cases()
        try:
            with self._lowering.attempt():
                if not self._decides:
                    raise CannotCompile(step.runnable, "the chain that it chooses is streamed")
                conditions = [(both(truths), way) for truths, way in cases]
                return self._in_server(step, value, conditions, default)
        except CannotCompile as error:
            reason = error.reason
        self._lowering.note(step, f"its conditions need a value that the server makes: {reason}")
        seen = yield Fetch(value)
        if has_unknown(seen):
            for number, (_, way) in enumerate(choice.cases(), 1):
                if not isinstance(way, Chosen):
                    yield from self._lowering.step(step.of(way, f"branch {number}"), value)
            return UNKNOWN
        made = apply_pure(step.runnable.func, seen, at_once)
        if not isinstance(made, Routed):
            return made
        return (yield from self._lowering.step(step.of(made.runnable), value))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A side of a choice that is a value, and no chain."""

    value: Any


@dataclass(frozen=True, slots=True)
class ChainChoice:
    """The result of a function that chooses a chain by a value of the server."""

    truth: Condition
    then: Any
    other: Any

    def cases(self) -> list[tuple[tuple[Condition, ...], Any]]:
        """The sides in the order of their checks, each with the conditions that must all hold.

        The last one has none.
        """
        made = [((self.truth, *more), way) for more, way in _cases(self.then)]
        return [*made, *_cases(self.other)]


def _cases(side: Any) -> list[tuple[tuple[Condition, ...], Any]]:
    if isinstance(side, ChainChoice):
        return side.cases()
    return [((), side.runnable if isinstance(side, Routed) else Chosen(side))]


def at_once(on: Evaluation, test: ast.expr, then: Part, other: Part) -> Any:
    """Decide a condition on values of the client."""
    return then() if on.plain(test) else other()


def _certain(on: Evaluation, part: Part) -> Any:
    try:
        return part()
    except CannotCompile:
        raise
    except Exception as error:  # the plain function raises it, if it takes this side
        raise CannotCompile(on.step, "one of its sides fails") from error


def _has_local(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_local, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_local, value))
    return isinstance(value, Local)
