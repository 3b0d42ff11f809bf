"""Added tokens that stand for text, such as `<tool_call>`, as llguidance has to see them.

llguidance takes every added token for a control token, which no text contains. But it splits text
with the tokenizer itself, which finds those tokens in it. So an output that is forced to begin with
such a text could not go on.
"""

from __future__ import annotations

import json
from typing import Any

# A token of other characters stays as it is: how a vocabulary spells them depends on its kind.
_FIRST, _LAST = "!", "~"


def with_text_tokens(tokenizer: str, vocabulary: int) -> tuple[str, tuple[int, ...]]:
    """The text of a tokenizer.json in which added tokens that are text are words of the vocabulary,
    and their ids. Tokens for which a model of `vocabulary` rows has none are left out."""
    raw: dict[str, Any] = json.loads(tokenizer)
    added, words = raw.get("added_tokens") or [], raw["model"].get("vocab")
    moved = [one for one in added if not one["special"] and _is_plain(one["content"])]
    beyond = [one for one in added if one["id"] >= vocabulary]
    if not isinstance(words, dict) or not (moved or beyond):
        return tokenizer, ()
    moved = [one for one in moved if one not in beyond]
    raw["added_tokens"] = [one for one in added if one not in moved and one not in beyond]
    words |= {one["content"]: one["id"] for one in moved}
    return json.dumps(raw), tuple(one["id"] for one in moved)


def _is_plain(content: str) -> bool:
    return all(_FIRST <= character <= _LAST for character in content)
