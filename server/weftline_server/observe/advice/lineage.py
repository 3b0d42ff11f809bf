"""The last prompts of one tenant, by what a later prompt of the same program has in common."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from weftline_server.observe.advice.program import Program
from weftline_server.observe.advice.prompt import PromptTexts

# What is kept of a tenant: prompts, and the characters of their texts.
MOST_LINEAGES = 256
MOST_CHARS = 4_000_000

Key = tuple[Hashable, ...]


@dataclass(slots=True, eq=False)
class Lineage:
    """Prompts of one program that follow one another; the last of them is kept.

    The prompts are of one template, or turns of one conversation. `chars` are those of the last
    prompt's texts. `tools` has a hash of each of its tools, and its characters. `number` is that of
    its last call.
    """

    program: Program
    prompt: PromptTexts
    tools: tuple[tuple[int, int], ...]
    chars: int = 0
    number: int = 0
    keys: set[Key] = field(default_factory=set)


class Lineages:
    """The lineages of a tenant, the least recently used first."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Lineage] = {}
        self._all: OrderedDict[Lineage, None] = OrderedDict()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._all)

    def find(self, key: Key) -> Lineage | None:
        """The lineage whose last prompt has this key."""
        return self._by_key.get(key)

    def put(self, lineage: Lineage, prompt: PromptTexts, chars: int, keys: Iterable[Key]) -> None:
        """Make `prompt` the last one of the lineage, to be found by `keys` alone."""
        taken = set(keys)
        for key in lineage.keys - taken:
            self._unname(lineage, key)
        for key in taken:
            before = self._by_key.get(key)
            if before is not None and before is not lineage:
                before.keys.discard(key)
            self._by_key[key] = lineage
        self._chars += chars - lineage.chars
        lineage.prompt, lineage.chars, lineage.keys = prompt, chars, taken
        self._all[lineage] = None
        self._all.move_to_end(lineage)
        while len(self._all) > MOST_LINEAGES or self._chars > MOST_CHARS:
            self._drop()

    def _drop(self) -> None:
        lineage, _ = self._all.popitem(last=False)
        self._chars -= lineage.chars
        for key in lineage.keys:
            self._unname(lineage, key)

    def _unname(self, lineage: Lineage, key: Key) -> None:
        if self._by_key.get(key) is lineage:
            del self._by_key[key]
