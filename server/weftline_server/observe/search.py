"""A search for text in the prompts and values of a tenant's sessions, as far as they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from weftline.contract.protocol import Call
from weftline_server.lowering.bounds import is_small
from weftline_server.prompt.render import value_text
from weftline_server.session.session import ServerSession

MAX_TEXT = 256  # characters to search for
# Characters that one search reads. 64 million take 0.2 s of the server's time, in many turns.
MOST_CHARS = 1 << 26
TURN_CHARS = 1 << 20  # that are read in one turn of the event loop, in about 3 ms
LONGEST = 1 << 20  # characters that are read of one text


async def found_in(
    sessions: Sequence[ServerSession], text: str
) -> tuple[list[ServerSession], bool]:
    """The sessions whose prompts or values contain `text`, whatever its case; and whether all were
    read. The newest are read first.
    """
    wanted = text.casefold()
    found: list[ServerSession] = []
    read = turn = 0
    for session in sessions:
        for part in _texts(session):
            read += len(part)
            turn += len(part) + 100
            if wanted in part[:LONGEST].casefold():
                found.append(session)
                break
            if turn >= TURN_CHARS:
                turn = 0
                await asyncio.sleep(0)
        if read >= MOST_CHARS:
            return found, session is sessions[-1]
    return found, True


def _texts(session: ServerSession) -> Iterator[str]:
    """The texts of its prompts, then those of its variables."""
    for run in list(session.tasks.values()):
        if run.task.call is not None:
            yield from _constants(run.task.call)
    for variable in list(session.variables.values()):
        if variable.text:
            yield variable.text
        elif variable.value is not None and is_small(variable.value):
            yield value_text(variable.value)


def _constants(call: Call) -> Iterator[str]:
    for segment in call.segments():
        if segment.text is not None:
            yield segment.text
    for holder in call.placeholders:
        if isinstance(holder.value, str):
            yield holder.value
