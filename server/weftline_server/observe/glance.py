"""A session at a glance: what it was asked, and what it has answered so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weftline.contract.protocol import InOut, Message
from weftline_server.graph.primitive import Task
from weftline_server.observe.client_tools import is_message_of
from weftline_server.observe.edges import Links
from weftline_server.prompt.render import value_text
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState, TaskRun

SHOWN_CHARS = 2000  # of an input, of an output, and of the end of a text that is being written
MOST_WRITTEN = 16  # calls whose texts are shown while they are written


def asked(session: ServerSession) -> str:
    """The inputs of the session's first call, or else the words of its user."""
    first = next((run for run in session.tasks.values() if run.task.call is not None), None)
    if first is None:
        return ""
    said = "\n".join(_inputs(session, first.task)) or "\n".join(_user_words(first.task))
    return said[:SHOWN_CHARS]


def answered(session: ServerSession, links: Links) -> tuple[str, str]:
    """The task whose output is the session's, and this output so far: that of the newest task whose
    output no task reads. Two empty texts where there is none.
    """
    read = {id for above in links.above.values() for id in above}
    for run in reversed(list(session.tasks.values())):
        if run.task.id not in read and run.task.writes and not run.task.owner:
            return run.task.id, text_of(session, run.task.writes[-1])[:SHOWN_CHARS]
    return "", ""


def written(session: ServerSession, live: Iterator[TaskRun]) -> dict[str, str]:
    """The ends of the texts that calls write now, by their tasks."""
    found: dict[str, str] = {}
    for run in live:
        if run.state is RunState.RUNNING and run.task.call is not None:
            if text := text_of(session, run.current.task.task.writes[-1]):
                found[run.task.id] = text[-SHOWN_CHARS:]
            if len(found) == MOST_WRITTEN:
                break
    return found


def text_of(session: ServerSession, variable: str) -> str:
    """The text of a variable so far; a value that is no text as JSON, a message by its words."""
    found = session.variables[variable]
    if is_message_of(found.value, "assistant") and found.value.get("content"):
        return str(found.value["content"])
    return found.text or ("" if found.value is None else value_text(found.value))


def _inputs(session: ServerSession, task: Task) -> Iterator[str]:
    assert task.call is not None, "asked before"
    for holder in task.call.placeholders:
        if holder.in_out is not InOut.IN:
            continue
        known = session.variables.get(holder.semantic_var_id or "")
        value: Any = holder.value if known is None or known.value is None else known.value
        if value is None:
            continue
        messages = value if isinstance(value, list) else [value]
        users = [one for one in messages if is_message_of(one, "user")]
        yield str(users[-1].get("content")) if users else value_text(value)


def _user_words(task: Task) -> Iterator[str]:
    assert task.call is not None, "asked before"
    for item in task.call.prompt:
        if isinstance(item, Message):
            if item.role == "user":
                yield "".join(segment.text or "" for segment in item.content)
        elif not isinstance(item, str) and item.text and item.text.strip():
            yield item.text.strip()
