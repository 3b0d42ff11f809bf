"""Checks a client's claims about the source of its text."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from weftline.contract.protocol import Call, Message, Segment
from weftline_server.lowering.bounds import is_small
from weftline_server.prompt.render import value_text
from weftline_server.session.session import ServerSession
from weftline_server.session.variable import VariableState

# Characters that the claims of one request may be looked for in. A claim is advice, so those beyond
# it do not count. Searching this many takes 10 ms.
MAX_SEARCHED = 1 << 24
_SOURCE = attrgetter("from_var")


class Sources:
    """The claims of one request, looked up in `session`."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._left = MAX_SEARCHED
        self._texts: dict[str, tuple[str, ...]] = {}  # of the variables that were named so far

    def came_from(self, variable: str, text: str) -> bool:
        """Whether `text` lies inside the value that `variable` has."""
        texts = self._texts_of(variable)
        self._left -= sum(map(len, texts))
        return self._left >= 0 and any(text in one for one in texts)

    def _texts_of(self, variable: str) -> tuple[str, ...]:
        """The variable's text, and its value as text if that text differs and is small."""
        if variable not in self._texts:
            found = self._session.variables.get(variable)
            texts: tuple[str, ...] = ()
            if found is not None and found.state is VariableState.READY:
                texts = (found.text,)
                if found.value != found.text and is_small(found.value):
                    texts = (found.text, value_text(found.value))
            self._texts[variable] = texts
        return self._texts[variable]

    def verified(self, call: Call) -> Call:
        """`call` without its wrong claims of provenance: such text is treated as constant."""
        if not isinstance(call.prompt, str) and any(map(_SOURCE, call.segments())):
            call = replace(call, prompt=tuple(map(self._checked_item, call.prompt)))
        if any(map(_SOURCE, call.placeholders)):
            holders = (
                holder
                if holder.from_var is None or self._is_held(holder.from_var, holder.value)
                else replace(holder, from_var=None)
                for holder in call.placeholders
            )
            call = replace(call, placeholders=tuple(holders))
        return call

    def _is_held(self, variable: str, value: object) -> bool:
        is_cheap = isinstance(value, str) or is_small(value)
        return is_cheap and self.came_from(variable, value_text(value))

    def _checked(self, segment: Segment) -> Segment:
        var, text = segment.from_var, segment.text
        if var is None or (text is not None and self.came_from(var, text)):
            return segment
        return replace(segment, from_var=None)

    def _checked_item(self, item: Message | Segment) -> Message | Segment:
        if isinstance(item, Segment):
            return self._checked(item)
        return replace(item, content=tuple(map(self._checked, item.content)))
