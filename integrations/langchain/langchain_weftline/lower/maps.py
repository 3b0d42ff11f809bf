"""`.map()`: the items of a list that the client has, or an each step over a list of the server.

The server runs the body for each item, also while the list is still written, if the list is surely
one of texts and the client would run nothing of the body. Otherwise the client fetches the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.base import RunnableEach

from langchain_weftline.lower.calls import Calls, is_heard
from langchain_weftline.lower.graph import Draft, body_calls
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.server_parts import quietly
from langchain_weftline.lower.steps import Fork, Handler, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    CannotCompile,
    Ref,
    Unknown,
    is_list_of_texts,
    is_symbolic,
)
from weftline.contract import steps
from weftline.contract.protocol import Call
from weftline.contract.transforms.methods import FACTS, LISTS

# The transforms of a text that never fail. Others could fail for an item.
_SURE = frozenset({"strip", "comma_list", "line_list", "numbered_list", "markdown_list"})


@dataclass(frozen=True, slots=True)
class EachDraft:
    """The runs of a body for all items of a list, before they are submitted.

    The values of the body's variable `last` become the list `var`.
    """

    var: str
    over: Ref
    item: str
    last: str
    drafts: tuple[Draft, ...]
    calls: tuple[Call, ...]
    name: str

    @property
    def reads(self) -> tuple[str, ...]:
        """The variable of the list, and what the body reads besides its items."""
        own = {self.item, *(draft.var for draft in self.drafts)}
        outer = (name for draft in self.drafts for name in draft.reads if name not in own)
        return tuple(dict.fromkeys((self.over.var, *outer)))

    def steps(self) -> tuple[steps.Each]:
        return (
            steps.Each(
                over=steps.Source(var=self.over.var, transforms=self.over.transforms),
                item=self.item,
                body=steps.Body(calls=self.calls),
                collect={self.last: self.var},
                max_items=steps.MAX_ITEMS,
                name=self.name,
            ),
        )


class Maps:
    """Lowers RunnableEach."""

    def __init__(
        self, lowering: Lowerer, mint: Callable[[], str], calls: Calls, searches: Searches
    ) -> None:
        self._lowering = lowering
        self._mint = mint
        self._calls = calls
        self._searches = searches

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {RunnableEach: self._each}

    def _each(self, step: Step, value: Any) -> Steps:
        """Each item is lowered by itself, or the body is lowered once for the server."""
        if not isinstance(value, (list, tuple, Unknown)) and is_symbolic(value):
            try:
                with self._lowering.attempt():
                    return self._in_server(step, value)
            except CannotCompile as error:
                why = "how many items there are is known when the list is"
                self._lowering.note(step, f"{why}: {error.reason}")
            value = yield from self._lowering.opened(value)
        *outer, name = step.path or ("map",)
        if isinstance(value, Unknown):
            if self._lowering.mode.is_ahead:
                return UNKNOWN
            part = Step(step.runnable.bound, step.config, (*outer, f"{name}[…]"))
            return [(yield from self._lowering.step(part, UNKNOWN))]
        if not isinstance(value, (list, tuple)):
            return (yield from self._lowering.run(step, value, "it does not get a list"))
        parts = []
        for number, item in enumerate(value):
            path = (*outer, f"{name}[{number}]")
            part = Step(step.runnable.bound, step.config, path)
            parts.append(self._lowering.step(part, item))
        return (yield Fork(tuple(parts)))

    def _in_server(self, step: Step, value: Any) -> Ref:
        """The list of what the body gives. Raises CannotCompile where the server cannot do it."""
        each = step.runnable
        if self._lowering.mode.is_ahead:
            raise CannotCompile(each, "LangChain runs it, and the server the calls ahead")
        if not is_list_of_texts(value):
            raise CannotCompile(each, "its list may hold something else than texts")
        part = Step(each.bound, step.config)
        # The server puts the name of the step before the names of the body's calls.
        return self.over(step, value, lambda item: self._lowering.step(part, item))

    def over(self, step: Step, value: Ref, body: Callable[[Ref], Steps]) -> Ref:
        """The list of what `body` gives for each item of the list `value`.

        Raises CannotCompile where the body is more than calls of the server whose last one gives a
        text.
        """
        each = step.runnable
        self._lowering.note(step, "the server runs it for each item of the list", in_server=True)
        item, before = Ref(self._mint()), len(self._calls.drafts)
        searches, unknown = len(self._searches.drafts), self._calls.unknown
        made = quietly(body(item))
        drafts = tuple(self._calls.drafts[before:])
        if len(self._searches.drafts) > searches or self._calls.unknown > unknown:
            raise CannotCompile(each, "it has more than calls")
        if any(draft.options.form is not None for draft in drafts):
            raise CannotCompile(each, "the client checks the forms of its answers")
        if any(is_heard(self._calls.asked[draft.var]) for draft in drafts):
            raise CannotCompile(each, "callbacks hear of its calls")
        if not isinstance(made, Ref) or made.var not in [draft.var for draft in drafts]:
            raise CannotCompile(each, "it gives something else than the text of a call")
        if made.make is not None or not all(map(_is_sure, made.transforms)):
            raise CannotCompile(each, "its parser may refuse an item")
        if made.transforms and any(made.var in draft.reads for draft in drafts):
            raise CannotCompile(each, "a call reads what its parser gets")
        del self._calls.drafts[before:]
        draft = EachDraft(
            var=self._mint(),
            over=value,
            item=item.var,
            last=made.var,
            drafts=drafts,
            calls=body_calls(drafts, {made.var: made.transforms}),
            name=_name(step.path),
        )
        self._searches.drafts.append(draft)
        return Ref(draft.var, is_text=False)


def _is_sure(spec: Mapping[str, Any]) -> bool:
    makes_text = spec["op"] == "text" and spec["method"] not in LISTS | FACTS
    return makes_text or spec["op"] in _SURE


def _name(path: tuple[str, ...]) -> str:
    name = ".".join(path)[: steps.MAX_NAME] or "map"
    return "".join(char if char.isprintable() else " " for char in name)
