"""RunnableBranch and functions that choose: both sides are in the graph, and one is skipped.

The server decides where the conditions are predicates on its values, and where the client would
run nothing of any side. Otherwise nothing behind the choice begins before LangChain has decided.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from langchain_core.runnables import RunnableBranch, RunnableLambda

from langchain_weftline.lower.branch_drafts import BRANCHES, Choices
from langchain_weftline.lower.call_steps import Calls, Guard
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.conditions import (
    Condition,
    Truth,
    both,
    checked,
    condition_of,
    truth_in,
    truth_of,
)
from langchain_weftline.lower.drafts import EachDraft
from langchain_weftline.lower.pure import Decide, Evaluation, Part, RoutedChain
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    CannotCompile,
    has_unknown,
    is_symbolic,
)


class Branches:
    """Lowers RunnableBranch, and functions that choose a chain."""

    def __init__(
        self, lowering: Lowerer, mint: Callable[[], str], calls: Calls, searches: Searches
    ) -> None:
        self._lowering = lowering
        self._mint = mint
        self._calls = calls
        self._searches = searches
        self._choices = Choices(mint, searches)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {RunnableBranch: self._branch}

    def _branch(self, step: ChainStep, value: Any) -> Any:
        """The conditions get the value itself, and the side that is taken gets variables."""
        if not is_symbolic(value):
            return self._on_plain(step, value)
        try:
            with self._lowering.attempt():
                conditions, side = self._conditions(step, value)
                if conditions:
                    return self._in_server(step, value, conditions, side)
        except CannotCompile as error:
            return self._undecided(step, error.reason)
        # The client has all that the conditions look at.
        return self._lowering.step(step.of(side), value)

    def _on_plain(self, step: ChainStep, value: Any) -> Any:
        """The side that is taken for a value of the client."""
        for condition, runnable in step.runnable.branches:
            met = self._lowering.step(step.of(condition), value)
            if has_unknown(met) or is_symbolic(met):
                return UNKNOWN
            if met:
                return self._lowering.step(step.of(runnable), value)
        return self._lowering.step(step.of(step.runnable.default), value)

    def _undecided(self, step: ChainStep, reason: str) -> Any:
        why = f"its conditions need a value that the server makes: {reason}"
        return self._lowering.unknown(step, why)

    def _in_server(
        self, step: ChainStep, value: Any, conditions: Sequence[tuple[Condition, Any]], default: Any
    ) -> Any:
        """The value of the branch. Raises CannotCompile where the server cannot decide.

        A side is a runnable, or a value that is `ValueSide`.
        """
        decision = self._choices.decision([condition for condition, _ in conditions], step.path)
        self._lowering.note(step, BRANCHES, in_server=True)
        ways = [step.of(way, f"branch {at}") for at, (_, way) in enumerate(conditions, 1)]
        ways.append(step.of(default, "default"))
        branch, sides = self._sides(ways, value)
        return self._choices.take(decision, sides, step.path, branch)

    def _conditions(self, step: ChainStep, value: Any) -> tuple[list[tuple[Condition, Any]], Any]:
        """The conditions that the server has to check, and the side if none of them holds."""
        found: list[tuple[Condition, Any]] = []
        for condition, runnable in step.runnable.branches:
            truth = self._truth(step.of(condition), value)
            if truth is True:
                return found, runnable
            if isinstance(truth, Condition):
                found.append((truth, runnable))
        return found, step.runnable.default

    def _truth(self, step: ChainStep, value: Any) -> Truth:
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
        return truth_of(self._lowering.whole(step, value), condition)

    def _sides(self, ways: Sequence[ChainStep], value: Any) -> tuple[str, list[Any]]:
        """The branch's variable, and what each side gives. A side's calls are guarded."""
        branch = self._mint()
        sides: list[Any] = []
        unknown, more = self._calls.unknown, list[int]()
        for number, way in enumerate(ways):
            before, steps_before = len(self._calls.drafts), len(self._searches.drafts)
            if isinstance(way.runnable, ValueSide):
                sides.append(way.runnable.value)
                more.append(0)
                continue
            sides.append(self._lowering.whole(way, value))
            if any(isinstance(draft, EachDraft) for draft in self._searches.drafts[steps_before:]):
                raise CannotCompile(way.runnable, "a side has a list whose length is not known")
            for draft in self._calls.drafts[before:]:
                self._calls.guard(draft.var, Guard(branch, number))
            more.append(self._calls.unknown - unknown)
            self._calls.unknown = unknown
        self._calls.unknown = unknown + min(more)  # one side runs
        return branch, sides

    def decide(self, step: ChainStep) -> Decide:
        """How the conditions of the function `step` decide."""

        def decide(on: Evaluation, test: ast.expr, then: Part, other: Part) -> Any:
            truth = checked(truth_in(on, test))
            if not isinstance(truth, Condition):
                return then() if truth else other()
            names, sides = dict(on.names), []
            for part in (then, other):
                on.names = dict(names)
                sides.append(_certain(on, part))
            on.names = names
            if any(isinstance(side, (RoutedChain, ChainChoice)) for side in sides):
                return ChainChoice(truth, *sides)
            decision = self._choices.decision([truth], step.path, sides)
            return self._choices.take(decision, sides, step.path)

        return decide

    def routed(self, step: ChainStep, value: Any, choice: ChainChoice) -> Any:
        """The result of a function that chooses a chain."""
        *cases, (_, default) = choice.cases()
        conditions = [(both(truths), way) for truths, way in cases]
        try:
            with self._lowering.attempt():
                return self._in_server(step, value, conditions, default)
        except CannotCompile as error:
            return self._undecided(step, error.reason)


@dataclass(frozen=True, slots=True)
class ValueSide:
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
    return [((), side.runnable if isinstance(side, RoutedChain) else ValueSide(side))]


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
