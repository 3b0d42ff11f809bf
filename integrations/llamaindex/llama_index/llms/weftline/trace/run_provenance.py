"""Provenance: the pieces of a run's prompts, and the run's session at the server.

The pieces of a prompt are the template's text, its arguments with their names, and earlier answers
of the run with their variables.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from llama_index.core.prompts.base import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    SelectorPromptTemplate,
)
from llama_index.llms.weftline.model.openai_messages import said_in

from weftline.kit import (
    BACKGROUND,
    CLIENTS,
    Closer,
    Closers,
    Piece,
    Pieces,
    RunSession,
    Server,
)
from weftline.kit.pieces import as_name, text_of
from weftline.sdk.aclient import AsyncSession
from weftline.sdk.heartbeat import heartbeat_path
from weftline.sdk.http import OnGraph

log = logging.getLogger(__name__)

# Shorter values are not searched for, because they also occur in texts by chance.
MIN_SEARCHED = 8
# A shorter text is not taken for an answer. It may be a label, which stands in templates and is an
# answer of models.
MIN_ANSWER = 12
MAX_ORIGINS = 4096  # values remembered for a run

# The pattern is compiled once. Compiling it took a tenth of the client's time for a prompt.
_MARK = secrets.token_hex(8)
_MARKED = re.compile(f"\ue000{_MARK}([^\ue000-\ue003]+)\ue001(.*?)\ue002{_MARK}\ue003", re.DOTALL)

_CLOSERS = Closers()
# A short program ends before the thread that closes its sessions has run.
atexit.register(_CLOSERS.end)
# Closing a session waits no longer than this, because an unused session expires in the server.
CLOSE_S = 2.0


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
    marked = {
        name: f"\ue000{_MARK}{name}\ue001{value}\ue002{_MARK}\ue003"
        for name, value in given.items()
        if isinstance(value, str)
    }
    try:
        if llm.metadata.is_chat_model:
            made = llm._get_messages(prompt, **{**arguments, **marked})
            rendered = [said_in(message) for message in made]
        else:
            rendered = [llm._get_prompt(prompt, **{**arguments, **marked})]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None  # LlamaIndex has rendered it, but this rendering failed
    # An argument may contain marks itself, if one template was rendered into another.
    found = [_cut(text) for text in rendered]
    return found if [text_of(pieces) for pieces in found] == list(texts) else None


def _selected(llm: Any, prompt: BasePromptTemplate) -> BasePromptTemplate:
    return prompt.select(llm) if type(prompt) is SelectorPromptTemplate else prompt


def _is_plain(llm: Any, prompt: BasePromptTemplate) -> bool:
    known = type(_selected(llm, prompt)) in (PromptTemplate, ChatPromptTemplate)
    return known and not runs_code(llm, prompt) and llm.messages_to_prompt is not None


def runs_code(llm: Any, prompt: BasePromptTemplate) -> bool:
    """Whether rendering `prompt` calls functions of the user."""
    return bool(_selected(llm, prompt).function_mappings)


def _cut(text: str) -> Pieces:
    pieces, end = [], 0
    for match in _MARKED.finditer(text):
        pieces += [Piece(text[end : match.start()]), Piece(match[2], as_name(match[1]))]
        end = match.end()
    pieces.append(Piece(text[end:]))
    return tuple(piece for piece in pieces if piece.text)


@dataclass(eq=False)
class SessionRun(RunSession):
    """One run's session at one server."""

    max_answers: ClassVar[int] = 256

    calls: int = 0  # of all graphs of the run
    # The variable that each value of a prompt was part of; None for what did not come from one.
    origins: OrderedDict[str, str | None] = field(default_factory=OrderedDict)

    def reserve(self, count: int) -> int:
        """Number the calls of a graph, so that no two graphs of a session write one variable."""
        with self.lock:
            first, self.calls = self.calls, self.calls + count
        return first

    def answered(self, variable: str, text: str, called: Iterable[str] = ()) -> None:
        """Note an answer, without white space around it: LlamaIndex strips answers in prompts."""
        super().answered(variable, text.strip(), called)

    def trace(self, pieces: Pieces) -> Pieces:
        """`pieces`, cut around the earlier answers of the run that occur in them."""
        with self.lock:
            answers = list(self.answers)
        whole = {text: variable for variable, text in answers}
        longest = sorted((a for a in answers if len(a[1]) >= MIN_ANSWER), key=lambda a: -len(a[1]))
        found: list[Piece] = []
        for piece in pieces:
            # A value that equals a whole answer counts as that answer, however short it is.
            if piece.name is not None and (variable := whole.get(piece.text.strip())):
                found.append(piece._replace(from_var=variable))
                continue
            parts = list(_split(piece, longest))
            if piece.name is not None and parts == [piece]:
                parts = [piece._replace(from_var=self._origin(piece.text, longest))]
            found += parts
        return tuple(found)

    def _origin(self, value: str, answers: Sequence[tuple[str, str]]) -> str | None:
        """The variable whose answer contains `value`, such as one of several sub-questions.

        The variable is None for a value that an earlier prompt had too, such as the user's
        question.
        """
        with self.lock:
            if value in self.origins:
                return self.origins[value]
            of = next((v for v, text in answers if value in text), None)
            self.origins[value] = None if len(value) < MIN_ANSWER else of
            if len(self.origins) > MAX_ORIGINS:
                self.origins.popitem(last=False)
            return self.origins[value]


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


def begin_run(server: Server, on_graph: OnGraph | None) -> SessionRun:
    """A session for a run at `server`. `on_graph` gets the session's graph when the run is over."""
    closer = _CLOSERS.find(server, partial(_close, server), partial(_beat, server))
    return SessionRun(
        closer, None if on_graph is None else partial(_show, server, closer, on_graph)
    )


def _close(server: Server, id: str) -> None:
    async def close() -> None:
        await (await _session(server, id)).close()

    BACKGROUND.run(asyncio.wait_for(close(), CLOSE_S))


def _beat(server: Server, id: str) -> None:
    async def beat() -> None:
        connection = (await CLIENTS.of(server)).connection
        await connection.request("POST", heartbeat_path(id))

    BACKGROUND.run(asyncio.wait_for(beat(), CLOSE_S))


def _show(server: Server, closer: Closer, on_graph: OnGraph, id: str) -> None:
    """Give the graph of an ended session to `on_graph`, then close the session."""

    async def show() -> None:
        try:
            on_graph(await (await _session(server, id)).graph())
        except Exception as error:  # only logged: the run has its answers, and no caller waits
            log.warning("the graph of a run cannot be shown: %s", error, exc_info=True)
        closer.add(id)

    BACKGROUND.start(show())


async def _session(server: Server, id: str) -> AsyncSession:
    return AsyncSession(await CLIENTS.of(server), id)
