"""Provenance: the pieces of a run's prompts, and the run's session at the server.

A prompt in pieces shows the template's text, its arguments under their names, and which parts are
earlier answers of the run.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from llama_index.core.prompts.base import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    SelectorPromptTemplate,
)

from weftline.aclient import AsyncSession
from weftline.adapters import BACKGROUND, Closer, Closers, Piece, Pieces, RunSession, Server
from weftline.adapters.pieces import as_name, text_of
from weftline.http import OnGraph

log = logging.getLogger(__name__)

# Shorter values also occur by chance in texts that they are no part of.
MIN_SEARCHED = 8
# A shorter answer also occurs by chance: templates list labels, and models answer with labels.
MIN_ANSWER = 12

_CLOSERS = Closers()


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


@dataclass(eq=False)
class Run(RunSession):
    """One run's session at one server."""

    max_answers: ClassVar[int] = 256

    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, cut around the earlier answers of the run that occur in them."""
        with self.lock:
            answers = [(v, text) for v, text in self.answers if len(text) >= MIN_ANSWER]
        answers.sort(key=lambda answer: -len(answer[1]))
        return tuple(part for piece in pieces for part in _split(piece, answers))


def _split(piece: Piece, answers: list[tuple[str, str]]) -> Iterator[Piece]:
    for variable, text in answers:
        before, found, after = piece.text.partition(text)
        if found:
            if before:
                yield from _split(piece._replace(text=before), answers)
            yield Piece(text, piece.name, variable)
            if after:
                yield from _split(piece._replace(text=after), answers)
            return
    yield piece


def begin_run(server: Server, on_graph: OnGraph | None) -> Run:
    """A session for a run at `server`. `on_graph` gets the session's graph when the run is over."""
    closer = _CLOSERS.find(server, partial(_close, server))
    return Run(closer, None if on_graph is None else partial(_show, server, closer, on_graph))


def _close(server: Server, id: str) -> None:
    async def close() -> None:
        await (await _session(server, id)).close()

    BACKGROUND.run(close())


def _show(server: Server, closer: Closer, on_graph: OnGraph, id: str) -> None:
    """Give the graph of an ended session to `on_graph`, then close the session."""

    async def show() -> None:
        try:
            on_graph(await (await _session(server, id)).graph())
        except Exception as error:  # the run has its answers, and no caller waits for it
            log.warning("the graph of a run cannot be shown: %s", error)
        closer.add(id)

    BACKGROUND.start(show())


async def _session(server: Server, id: str) -> AsyncSession:
    session = (await BACKGROUND.client(server)).session()
    session.id = id
    return session
