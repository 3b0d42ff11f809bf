"""Choices that the server makes: a branch among values, and the texts that are its sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_weftline.lower.conditions import Condition, Predicate
from langchain_weftline.lower.drafts import BranchDraft, TextDraft
from langchain_weftline.lower.searches import Searches, name_at
from langchain_weftline.lower.symbols import (
    AnswerMessage,
    CannotCompile,
    Fragment,
    Hole,
    HoleText,
    Ref,
    string_pieces,
)
from langchain_weftline.lower.texts import can_be_sent, is_exact
from weftline.contract import steps

BRANCHES = "a branch, whose conditions are data"
MIXED = "its sides give values of different kinds"


def branches_of(drafts: Sequence[Any]) -> dict[str, BranchDraft]:
    """The branches among drafts of steps, by their variables."""
    return {draft.var: draft for draft in drafts if isinstance(draft, BranchDraft)}


def choices_of(drafts: Sequence[Any]) -> dict[str, BranchDraft | TextDraft]:
    """The branches and texts among drafts of steps, by their variables. Branches and texts take no
    time."""
    return {draft.var: draft for draft in drafts if isinstance(draft, (BranchDraft, TextDraft))}


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a branch: the predicate of each case, on the variable `on`."""

    on: str
    whens: tuple[Predicate, ...]


class Choices:
    """Drafts branches, and the texts that they need, among the steps of `searches`."""

    def __init__(self, mint: Callable[[], str], searches: Searches) -> None:
        self._mint = mint
        self._searches = searches

    def decision(
        self, conditions: Sequence[Condition], path: tuple[str, ...], sides: Sequence[Any] = ()
    ) -> Decision:
        """The decision by `conditions`. Several variables become one JSON text.

        The decision waits for all values that `sides` read. The plain chain has made these values
        before it chooses, so no call that makes one of them is skipped, and its failure is the
        chain's.
        """
        if len(conditions) > steps.MAX_CASES:
            raise CannotCompile("branch", f"it has more than {steps.MAX_CASES} conditions")
        asked = dict.fromkeys(name for one in conditions for name in one.variables)
        names = list(asked | dict.fromkeys(self._sources(sides)))
        if len(names) == 1:
            placed = tuple(one.placed({names[0]: ()}) for one in conditions)
            return Decision(names[0], placed)
        parts = [steps.Source(value="[")]
        for number, name in enumerate(names):
            parts += [steps.Source(value=",")] * (number > 0)
            parts.append(steps.Source(var=name, transforms=({"op": "json_text"},)))
        gathered = self._written([*parts, steps.Source(value="]")], f"values{name_at(path)}")
        before = {
            name: ({"op": "json"}, {"op": "path", "keys": [number]})
            for number, name in enumerate(names)
        }
        return Decision(gathered, tuple(one.placed(before) for one in conditions))

    def take(
        self, decision: Decision, sides: Sequence[Any], path: tuple[str, ...], branch: str = ""
    ) -> Any:
        """The value of the side that is taken; the last one is the default.

        Raises CannotCompile where the sides have different shapes, or are the same. `branch` is the
        variable of the first branch that is made.
        """
        before = len(self._searches.drafts)
        made = self._take(decision, sides, path, branch)
        if not branches_of(self._searches.drafts[before:]):
            raise CannotCompile("branch", "its sides are the same")  # its condition may fail
        return made

    def _take(
        self, decision: Decision, sides: Sequence[Any], path: tuple[str, ...], branch: str
    ) -> Any:
        first = sides[0]
        if all(_is_same(side, first) for side in sides):
            return first
        if isinstance(first, dict) and all(
            type(side) is dict and side.keys() == first.keys() for side in sides
        ):
            parts = {key: [side[key] for side in sides] for key in first}
            return {key: self._take(decision, of, path, branch) for key, of in parts.items()}
        if isinstance(first, (Ref, AnswerMessage)) and all(
            isinstance(side, (Ref, AnswerMessage)) and replace(side, var=first.var) == first
            for side in sides
        ):
            return replace(first, var=self._branch(decision, [s.var for s in sides], path, branch))
        if not all(is_textual(side) for side in sides):
            raise CannotCompile("branch", MIXED)
        names = [self.text(side, path) for side in sides]
        return Ref(self._branch(decision, names, path, branch))

    def _sources(self, value: Any) -> Iterator[str]:
        """The variables in `value`. Branches and texts count as the variables that they read."""
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for item in value:
                yield from self._sources(item)
        names = [value.var] if isinstance(value, (Ref, AnswerMessage)) else []
        if isinstance(value, HoleText):
            names = [piece.ref.var for piece in value.pieces if isinstance(piece, Hole)]
        made = choices_of(self._searches.drafts)
        while names:
            name = names.pop(0)
            if name in made:
                names += made[name].reads
            else:
                yield name

    def text(self, value: Any, path: tuple[str, ...]) -> str:
        """The variable of a text."""
        if isinstance(value, Ref) and not value.transforms:
            return value.var
        return self._written(
            [_source(piece) for piece in string_pieces(value, "branch")] or [_source("")],
            f"text{name_at(path)}",
        )

    def _written(self, parts: Sequence[steps.Source], name: str) -> str:
        if len(parts) > steps.MAX_PARTS:
            raise CannotCompile("branch", f"a text has more than {steps.MAX_PARTS} parts")
        draft = TextDraft(self._mint(), tuple(parts), name)
        self._searches.drafts.append(draft)
        return draft.var

    def _branch(
        self, decision: Decision, sides: Sequence[str], path: tuple[str, ...], branch: str
    ) -> str:
        is_free = branch and branch not in branches_of(self._searches.drafts)
        draft = BranchDraft(
            var=branch if is_free else self._mint(),
            on=decision.on,
            cases=tuple(zip(decision.whens, sides[:-1], strict=True)),
            default=sides[-1],
            name=f"branch{name_at(path)}",
        )
        self._searches.drafts.append(draft)
        return draft.var


def is_textual(value: Any) -> bool:
    """Whether `value` is surely a text, which the server or the client has."""
    if isinstance(value, Ref):
        return value.is_text and value.kind is None
    return isinstance(value, HoleText) or type(value) is str


def _source(piece: Fragment) -> steps.Source:
    if isinstance(piece, str):
        if not can_be_sent(piece):
            raise CannotCompile("branch", "a side has half of a surrogate pair")
        return steps.Source(value=piece)
    ref = piece.ref
    return steps.Source(var=ref.var, transforms=(*ref.transforms, *piece.form))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two sides are one value, so that no branch is needed."""
    if is_exact(one) and is_exact(other):
        return repr(one) == repr(other)
    return isinstance(one, (Ref, AnswerMessage, HoleText)) and one == other
