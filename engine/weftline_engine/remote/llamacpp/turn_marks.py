"""Where a prompt's last message of the user begins, found by what the chat template writes there.

What stands before it, the system prompt, the tools and examples, is what later prompts are likely
to have in common with it. This module is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weftline_engine.remote.common_tokens import common

# Characters for private use, which no template changes.
_FIRST, _ANSWER, _SECOND = "\ue000", "\ue001", "\ue002"


def probe() -> dict[str, Any]:
    """The chat to render: two messages of the user, and an answer between them."""
    said = (("user", _FIRST), ("assistant", _ANSWER), ("user", _SECOND))
    return {"messages": [{"role": role, "content": text} for role, text in said]}


def before_messages(rendered: str) -> tuple[str, str]:
    """What a rendered probe has before each message of the user. Whitespace at its end is left out,
    because it may be one token with what follows. Empty if the probe was not rendered so."""
    before, _, rest = rendered.partition(_FIRST)
    between, _, behind = rest.partition(_ANSWER)[2].partition(_SECOND)
    return (before.rstrip(), between.rstrip()) if between and behind else ("", "")


def common_end(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The last tokens that both have."""
    size = common(one[::-1], other[::-1])
    return tuple(one[len(one) - size :])


def begin_of_last(tokens: Sequence[int], mark: Sequence[int]) -> int:
    """How many tokens there are up to the end of the last mark. 0 if there is none."""
    size = len(mark)
    if not size:
        return 0
    last, mark = mark[-1], tuple(mark)
    for end in range(len(tokens), size - 1, -1):
        if tokens[end - 1] == last and tuple(tokens[end - size : end]) == mark:
            return end
    return 0
