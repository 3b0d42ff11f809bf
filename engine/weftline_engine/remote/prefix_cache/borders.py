"""Where prompts part, for a model whose state is kept at few places. It is pure.

vLLM keeps a recurrent state at the end of a prompt, in whole blocks, and nowhere before. So a
prompt that parts from earlier ones finds nothing of them, unless their common beginning was a
prompt by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weftline_engine.remote.common_tokens import common
from weftline_engine.remote.prefix_cache.open_prompts import WARM_TOKENS

MOST_PROMPTS = 64  # that are compared with a new one

Prompt = tuple[str, tuple[int, ...]]
"""The salt and the tokens."""


class Borders:
    """The last prompts, and the beginnings that were filled for several of them."""

    def __init__(self) -> None:
        self._prompts: deque[Prompt] = deque(maxlen=MOST_PROMPTS)

    def add(self, tokens: tuple[int, ...], salt: str) -> None:
        """Note a prompt. Its state is kept where it ends."""
        self._prompts.append((salt, tokens))

    def kept(self, tokens: Sequence[int], salt: str) -> int:
        """The longest beginning of a prompt that was a prompt by itself."""
        alike = (one for found, one in self._prompts if found == salt and len(one) < len(tokens))
        return max((len(one) for one in alike if common(one, tokens) == len(one)), default=0)

    def due(self, tokens: Sequence[int], salt: str) -> int:
        """The beginning of a prompt to fill before it: what another prompt has in common with it.
        0 if the state is kept near that place, or if nothing is in common."""
        others = (one for found, one in self._prompts if found == salt and one != tokens)
        shared = max((common(one, tokens) for one in others), default=0)
        shared = min(shared, len(tokens) - 1)
        return shared if shared - self.kept(tokens, salt) >= WARM_TOKENS else 0
