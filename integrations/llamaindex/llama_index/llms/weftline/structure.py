"""The pieces of LlamaIndex's prompts: a template's text, and its arguments under their names."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.prompts.base import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    SelectorPromptTemplate,
)

from weftline.adapters import Piece, Pieces
from weftline.adapters.pieces import as_name, text_of

# Shorter values also occur by chance in texts that they are no part of.
MIN_SEARCHED = 8


def by_template(
    llm: Any, prompt: BasePromptTemplate, arguments: Mapping[str, Any], texts: Sequence[str]
) -> list[Pieces] | None:
    """The pieces of each message that `prompt` made; None unless they add up to `texts`.

    The template is rendered again with marks around its arguments. A template with function
    mappings is not rendered, because these are the user's code.
    """
    if not _is_plain(llm, prompt):
        return None
    given = {**prompt.kwargs, **arguments}
    mark = secrets.token_hex(8)
    marked = {
        name: f"\ue000{mark}{name}\ue001{value}\ue002{mark}\ue003"
        for name, value in given.items()
        if isinstance(value, str)
    }
    try:
        if llm.metadata.is_chat_model:
            made = llm._get_messages(prompt, **{**arguments, **marked})
            rendered = [message.content or "" for message in made]
        else:
            rendered = [llm._get_prompt(prompt, **{**arguments, **marked})]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None  # LlamaIndex could render it, and we cannot
    # An argument may itself hold marks, where one template was rendered into another.
    pattern = re.compile(f"\ue000{mark}([^\ue000-\ue003]+)\ue001(.*?)\ue002{mark}\ue003", re.DOTALL)
    found = [_cut(text, pattern) for text in rendered]
    return found if [text_of(pieces) for pieces in found] == list(texts) else None


def _is_plain(llm: Any, prompt: BasePromptTemplate) -> bool:
    if type(prompt) is SelectorPromptTemplate:
        prompt = prompt.select(llm)
    known = type(prompt) in (PromptTemplate, ChatPromptTemplate)
    return known and not prompt.function_mappings and llm.messages_to_prompt is not None


def _cut(text: str, pattern: re.Pattern[str]) -> Pieces:
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [Piece(text[end : match.start()]), Piece(match[2], as_name(match[1]))]
        end = match.end()
    pieces.append(Piece(text[end:]))
    return tuple(piece for piece in pieces if piece.text)
