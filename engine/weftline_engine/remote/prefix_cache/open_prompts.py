"""Decides which beginnings of open prompts vLLM fills early.

This module is pure. The calls of one application often begin alike: the task, the files so far. One
request fills such a beginning for all of them, because vLLM finds its blocks for each later prompt.
While open prompts had requests of their own, a program with 30 open calls sent 30 for each block.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from weftline_engine import api

# An open prompt is filled early in multiples of 128 tokens: the KV block of vLLM on a CPU, and
# several blocks of one that we start or that has a GPU. The call itself recomputes an incomplete
# block, so filling part of one gains nothing. An early fill also costs a request, and a step that
# samples one token.
WARM_TOKENS = 128


@dataclass(eq=False, slots=True)
class OpenPrompt:
    """An open op: its tokens so far, of which `warmed` have been sent in early fills."""

    op: api.Op
    tokens: list[int]
    warmed: int = 0
    warming: asyncio.Task[None] | None = field(default=None, repr=False)
    names: list[int] = field(default_factory=list)  # of its beginnings of 128, 256, … tokens

    @property
    def busy(self) -> bool:
        """Whether an early fill of it is under way."""
        return self.warming is not None and not self.warming.done()

    def beginnings(self) -> list[int]:
        """A name for each beginning of whole blocks. Equal beginnings have equal names.

        vLLM always recomputes the last token of a prompt, with its whole block. So a beginning is
        complete when one token more is known.
        """
        known = len(self.names) * WARM_TOKENS
        for start in range(known, len(self.tokens) - WARM_TOKENS, WARM_TOKENS):
            before = self.names[-1] if self.names else hash(self.op.salt)
            self.names.append(hash((before, *self.tokens[start : start + WARM_TOKENS])))
        return self.names


class OpenPrompts:
    """The open ops by name, and who has filled the beginnings of their prompts."""

    def __init__(self) -> None:
        self._prompts: dict[str, OpenPrompt] = {}
        self._fillers: dict[int, OpenPrompt] = {}

    def add(self, op: api.Op, tokens: tuple[int, ...]) -> OpenPrompt:
        found = self._prompts[op.id] = OpenPrompt(op, list(tokens))
        return found

    def get(self, op: str) -> OpenPrompt | None:
        return self._prompts.get(op)

    def pop(self, op: str) -> OpenPrompt | None:
        """Remove an op. What it has filled is not needed any more: vLLM may evict it when the
        op ends."""
        found = self._prompts.pop(op, None)
        if found is not None:
            for name in found.names:
                if self._fillers.get(name) is found:
                    del self._fillers[name]
        return found

    def busy(self) -> list[asyncio.Task[None]]:
        """The early fills that are under way or done, to be cancelled."""
        return [one.warming for one in self._prompts.values() if one.warming is not None]

    def due(self, found: OpenPrompt) -> int | None:
        """How many tokens of a prompt to fill now, or None.

        None if all whole blocks are filled, also by another open op, and while the longest known
        part of them is being filled.
        """
        names = found.beginnings()
        whole = len(names) * WARM_TOKENS
        if found.busy or whole <= found.warmed:
            return None
        for index in reversed(range(found.warmed // WARM_TOKENS, len(names))):
            filler = self._fillers.get(names[index])
            if filler is not None:
                if index == len(names) - 1 or filler.busy:
                    return None
                break
        found.warmed = whole
        for name in names:
            self._fillers.setdefault(name, found)
        return whole
