"""RunnableBranch: where the server can decide, both sides are in the graph, and one is skipped.

The server decides where the conditions are predicates on one text of the server, and where the
client would run nothing of any side. Otherwise the client fetches the value and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from langchain_core.runnables import RunnableBranch, RunnableLambda

from langchain_weftline.lower.calls import Calls, Guard
from langchain_weftline.lower.conditions import (
    Condition,
    Predicate,
    Truth,
    condition_of,
    truth_of,
)
from langchain_weftline.lower.maps import EachDraft
from langchain_weftline.lower.quiet import quietly
from langchain_weftline.lower.searches import Searches, name_at
from langchain_weftline.lower.steps import Fetch, Handler, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    Answer,
    CannotCompile,
    Local,
    Ref,
    has_unknown,
    is_symbolic,
)
from weftline import steps

_MIXED = "its sides give values of different kinds"


@dataclass(frozen=True, slots=True)
class BranchDraft:
    """A branch before it is submitted. Its value becomes the variable `var`."""

    var: str
    on: str
    cases: tuple[tuple[Mapping[str, Any], str], ...]
    default: str
    name: str

    @property
    def sides(self) -> tuple[str, ...]:
        """The variables of its sides."""
        return (*(side for _, side in self.cases), self.default)

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable that decides, and those of the sides."""
        return (self.on, *self.sides)

    def steps(self) -> tuple[steps.Branch]:
        """The step of the submit."""
        cases = tuple(steps.Case(when=dict(when), take=side) for when, side in self.cases)
        return (
            steps.Branch(
                on=steps.Source(var=self.on),
                cases=cases,
                default=self.default,
                out=self.var,
                name=self.name,
            ),
        )


class Branches:
    """Lowers RunnableBranch. Where `decides` is not set, the client takes every decision."""

    def __init__(
        self,
        lowering: Lowerer,
        mint: Callable[[], str],
        calls: Calls,
        searches: Searches,
        *,
        decides: bool,
    ) -> None:
        self._lowering = lowering
        self._mint = mint
        self._calls = calls
        self._searches = searches
        self._decides = decides

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """The handler of each class."""
        return {RunnableBranch: self._branch}

    def _branch(self, step: Step, value: Any) -> Steps:
        """The conditions get the value itself, and the side that is taken gets variables."""
        reason = ""
        if self._decides and not self._lowering.mode.is_ahead and is_symbolic(value):
            try:
                with self._lowering.attempt():
                    conditions, side = self._conditions(step, value)
                    if conditions:
                        return self._in_server(step, value, conditions, side)
            except CannotCompile as error:
                reason = f": {error.reason}"
            else:  # the client has all that the conditions look at
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
        """All branches, for an explanation. Before a run it is not known which one is taken."""
        if self._lowering.mode.is_ahead:
            return UNKNOWN
        ways = [runnable for _, runnable in step.runnable.branches]
        for number, runnable in enumerate(ways, 1):
            yield from self._lowering.step(step.of(runnable, f"branch {number}"), value)
        default = step.of(step.runnable.default, "default")
        return (yield from self._lowering.step(default, value))

    def _in_server(
        self, step: Step, value: Any, conditions: Sequence[tuple[Condition, Any]], default: Any
    ) -> Ref | Answer:
        """The value of the branch. Raises CannotCompile where the server cannot decide."""
        if _has_local(value):
            raise CannotCompile(step.runnable, "it gets a value of a step of the client")
        [on, *others] = {condition.var for condition, _ in conditions}
        if others:
            raise CannotCompile(step.runnable, "its conditions are about several values")
        self._lowering.note(step, "a branch, whose conditions are data", in_server=True)
        ways = [step.of(way, f"branch {at}") for at, (_, way) in enumerate(conditions, 1)]
        whens = [condition.when for condition, _ in conditions]
        ways.append(step.of(default, "default"))
        branch, sides = self._sides(ways, value, on, whens)
        first = sides[0]
        same = [replace(side, var=first.var) for side in sides]
        if any(side != first for side in same):
            raise CannotCompile(step.runnable, _MIXED)
        draft = BranchDraft(
            var=branch,
            on=on,
            cases=tuple(zip(whens, [side.var for side in sides[:-1]], strict=True)),
            default=sides[-1].var,
            name=f"branch{name_at(step.path)}",
        )
        if len(draft.cases) > steps.MAX_CASES:
            raise CannotCompile(step.runnable, f"it has more than {steps.MAX_CASES} conditions")
        self._searches.drafts.append(draft)
        return replace(first, var=draft.var)

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

    def _sides(
        self, ways: Sequence[Step], value: Any, on: str, whens: Sequence[Predicate]
    ) -> tuple[str, list[Ref | Answer]]:
        """The branch's variable, and what each side gives. A side's calls are guarded."""
        branch = self._mint()
        sides: list[Ref | Answer] = []
        unknown, more = self._calls.unknown, list[int]()
        for number, way in enumerate(ways):
            before, steps_before = len(self._calls.drafts), len(self._searches.drafts)
            made = quietly(self._lowering.step(way, value))
            if not isinstance(made, (Ref, Answer)):
                raise CannotCompile(way.runnable, "a side gives something else than an answer")
            if any(isinstance(draft, EachDraft) for draft in self._searches.drafts[steps_before:]):
                raise CannotCompile(way.runnable, "a side has a list whose length is not known")
            sides.append(made)
            when = (*({"op": "not", "of": one} for one in whens[:number]), *whens[number:][:1])
            for draft in self._calls.drafts[before:]:
                self._calls.guard(draft.var, Guard(branch, number, on, when))
            more.append(self._calls.unknown - unknown)
            self._calls.unknown = unknown
        self._calls.unknown = unknown + min(more)  # one side runs
        return branch, sides


def _has_local(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_local, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_local, value))
    return isinstance(value, Local)


def branches_of(drafts: Sequence[Any]) -> dict[str, BranchDraft]:
    """The branches among drafts of steps, by their variables."""
    return {draft.var: draft for draft in drafts if isinstance(draft, BranchDraft)}
