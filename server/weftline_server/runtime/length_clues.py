"""What a call's prompt tells about the length of its output, before the call runs."""

from __future__ import annotations

from collections.abc import Iterator

from weftline.contract.protocol import Message
from weftline_server.lowering.kinds.prompt import PromptBody, template_of
from weftline_server.schedule.lengths import Clues
from weftline_server.session.session import ServerSession

# Words of the values that are looked at, and the characters at both ends of a text in which these
# stand. What is asked for mostly stands at an end.
MOST_WORDS, END_CHARS = 64, 400


def clues(body: PromptBody, size: int, session: ServerSession | None = None) -> Clues:
    """The clues of an output whose prompt has `size` tokens. Without a session its values are
    not known yet.
    """
    prompt = body.call.prompt
    assert not isinstance(prompt, str), "template text is parsed when it arrives"
    messages = [one for one in prompt if isinstance(one, Message)]
    called = [made.function.name for one in messages for made in one.tool_calls]
    tool = called[-1] if called else ""
    words = () if session is None else _words(body, session)
    return Clues(template_of(body), size, len(prompt), tool, words)


def _words(body: PromptBody, session: ServerSession) -> tuple[str, ...]:
    """The last words of a prompt behind its first segment, which is a part of the template."""
    found: list[str] = []
    for text in _last_texts(body, session):
        short = text if len(text) <= 2 * END_CHARS else f"{text[:END_CHARS]} {text[-END_CHARS:]}"
        found += short.lower().split()[: MOST_WORDS - len(found)]
        if len(found) == MOST_WORDS:
            break
    return tuple(found)


def _last_texts(body: PromptBody, session: ServerSession) -> Iterator[str]:
    """The texts of a prompt, the last one first. Of several the first is left out."""
    holders = {holder.name: holder for holder in body.holders}
    for segment in reversed(body.before[1:] or body.before):
        if segment.text is not None:
            yield segment.text
            continue
        holder = holders[segment.input or segment.output or ""]
        if holder.semantic_var_id is None:
            yield str(holder.value)
        else:
            yield session.variables[holder.semantic_var_id].text
