"""`.map()`: the items of a list that the client has, or an each step over a list of the server.

The server runs the body for each item, also while the list is still written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.runnables.base import RunnableEach

from langchain_weftline.lower.call_steps import Calls
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.drafts import EachDraft
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    CannotCompile,
    Ref,
    Unknown,
    is_list_of_texts,
    is_symbolic,
)
from weftline.contract import steps


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

    def _each(self, step: ChainStep, value: Any) -> Any:
        """Each item is lowered by itself, or the body is lowered once for the server."""
        body = step.runnable.bound
        if not isinstance(value, (list, tuple, Unknown)) and is_symbolic(value):
            if not is_list_of_texts(value):
                raise CannotCompile(step.runnable, "its list may hold something else than texts")
            part = ChainStep(body, step.config)
            # The server puts the name of the step before the names of the body's calls.
            return self.over(step, value, lambda item: self._lowering.part(part, item))
        *outer, name = step.path or ("map",)
        if isinstance(value, Unknown):
            # The body is visited for what an explanation says of it.
            self._lowering.part(ChainStep(body, step.config, (*outer, f"{name}[…]")), UNKNOWN)
            return self._lowering.unknown(step, "its list is known only in the run")
        if not isinstance(value, (list, tuple)):
            return self._lowering.run(step, value, "it does not get a list")
        return [
            self._lowering.part(ChainStep(body, step.config, (*outer, f"{name}[{number}]")), item)
            for number, item in enumerate(value)
        ]

    def over(self, step: ChainStep, value: Ref, body: Callable[[Ref], Any]) -> Any:
        """The list of what `body` gives for each item of the list `value`.

        The list is known if `body` gives the text of a call. Raises CannotCompile where the body
        has no calls that can begin, or other steps of the server.
        """
        with self._lowering.attempt():
            return self._over(step, value, body)

    def _over(self, step: ChainStep, value: Ref, body: Callable[[Ref], Any]) -> Any:
        self._lowering.note(step, "the server runs it for each item of the list", in_server=True)
        item, before = Ref(self._mint()), len(self._calls.drafts)
        searches = len(self._searches.drafts)
        made = body(item)
        drafts = tuple(self._calls.drafts[before:])
        if not drafts:
            raise CannotCompile(step.runnable, "none of its calls can begin before the run")
        if len(self._searches.drafts) > searches:
            raise CannotCompile(step.runnable, "it has steps of the server besides calls")
        del self._calls.drafts[before:]
        draft = EachDraft(
            over=value,
            item=item.var,
            drafts=drafts,
            lists={one.var: self._mint() for one in drafts},
            name=_name(step.path),
        )
        self._searches.drafts.append(draft)
        is_answer = isinstance(made, Ref) and not made.transforms and made.kind is None
        return Ref(draft.lists[made.var], is_text=False) if is_answer else UNKNOWN


def _name(path: tuple[str, ...]) -> str:
    name = ".".join(path)[: steps.MAX_NAME] or "map"
    return "".join(char if char.isprintable() else " " for char in name)
