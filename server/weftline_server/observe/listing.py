"""A tenant's sessions as JSON rows: what each runs or ran, what it cost, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weftline.contract.protocol import Call, InOut, Message, Segment
from weftline_server.graph.primitive import Task, Where
from weftline_server.observe.client_tools import is_message_of
from weftline_server.observe.cost import Prices
from weftline_server.session.session import ServerSession
from weftline_server.session.task import RunState, TaskRun

MOST = 1000  # rows of a list
# Tasks that are added up in one turn of the event loop: about a millisecond.
TURN_TASKS = 1000
WORDS_CHARS = 80  # of a template's first words, which name a session


async def listing(
    sessions: Sequence[ServerSession], prices: Prices, wall: float
) -> list[dict[str, Any]]:
    """A row for each session.

    Long lists are made in many turns of the event loop, so that other requests run in between.
    """
    rows, tasks = [], 0
    now = time.monotonic()  # the clock of all sessions
    for session in sessions:
        rows.append(row(session, now, wall) | prices.shown(prices.of_session(session)))
        tasks += len(session.tasks)
        if tasks >= TURN_TASKS:
            tasks = 0
            await asyncio.sleep(0)
    return rows


def merged(lists: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """The lists of several servers as one. A closed session may be in several, and counts once."""
    rows = {row["session_id"]: row for one in lists for row in one["sessions"]}
    repeated = sum(len(one["sessions"]) for one in lists) - len(rows)
    newest = sorted(rows.values(), key=lambda row: float(row["opened"]), reverse=True)
    return {
        "sessions": newest[:limit],
        "total": sum(one["total"] for one in lists) - repeated,
        "found": sum(one["found"] for one in lists) - repeated,
        "all_read": all(one["all_read"] for one in lists),
    }


def row(session: ServerSession, now: float, wall: float) -> dict[str, Any]:
    """One session. `wall` is the difference of the wall clock to the sessions' clock.

    `name` is what the client calls the run, else the first words of its first call. Runs of one
    `application` have its name, or that of their first call, in common. `age_s` counts to now, or
    to its end. Tokens are those of the outputs that have ended. `engines` are those that ran a call
    or a step of the session.
    """
    states: Counter[str] = Counter()
    prompt = cached = output = calls = at_client = 0
    error = None
    engines: set[str] = set()
    for run in session.tasks.values():
        states[run.state.value] += 1
        at_client += run.state is RunState.RUNNING and is_of_client(run)
        calls += run.task.call is not None
        if error is None and run.error is not None:
            error = run.error.type
        for step in run.steps:
            if step.engine:
                engines.add(step.engine)
            if step.usage is not None:
                prompt += step.usage.prompt_tokens
                cached += step.usage.cached_tokens
                output += step.usage.output_tokens
    end = now if session.ended is None else session.ended
    return {
        "session_id": session.id,
        **_named(session),
        "state": "open" if session.ended is None else "closed",
        "phase": phase(session, states, at_client, error),
        "opened": session.opened + wall,
        "age_s": end - session.opened,
        "calls": calls,
        "steps": len(session.tasks) - calls,
        "states": dict(states),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": output,
        "engines": sorted(engines),
        "error": error,
    }


def is_of_client(run: TaskRun) -> bool:
    """Whether the client computes the task."""
    return run.task.primitives[0].traits.where is Where.CLIENT


def phase(
    session: ServerSession, states: Mapping[str, int], at_client: int, error: str | None
) -> str:
    """What a session does, in words: it is failed, done, running or queued, or waits for a tool or
    for its client. It waits for a tool if the last answer calls one, and if the client computes
    the `at_client` steps that run.
    """
    if error is not None:
        return "failed"
    if session.ended is not None:
        return "done"
    if states.get(RunState.RUNNING.value, 0) > at_client:
        return "running"
    if states.get(RunState.QUEUED.value):
        return "queued"
    if at_client:
        return "waiting for a tool"
    last = next(reversed(list(session.tasks.values())), None)
    answer = session.variables.get(last.task.writes[-1]) if last and last.task.writes else None
    calls = answer is not None and isinstance(answer.value, dict) and "tool_calls" in answer.value
    return "waiting for a tool" if calls else "waiting for the client"


def _named(session: ServerSession) -> dict[str, str]:
    """The session's name, and that of its application."""
    first = next(iter(session.tasks.values()), None)
    if first is None:
        return {"name": "", "application": ""}
    called = first.origin.run_name or first.task.name
    name = first.origin.run_name or words_of(first.task, session) or called
    return {"name": name, "application": called}


def words_of(task: Task, session: ServerSession | None = None) -> str:
    """The first words of a call's prompt, of its first message of a user if it has one. Inputs are
    named and not shown, unless there is nothing else: then the words are those of their values, as
    far as these are known in the `session`. Empty for a step.
    """
    if task.call is None:
        return ""
    prompt = task.call.prompt
    assert not isinstance(prompt, str), "template text is parsed when it arrives"
    asked = [one for one in prompt if isinstance(one, Message) and one.role == "user"]
    segments = [
        segment
        for item in asked[:1] or prompt
        for segment in (item.content if isinstance(item, Message) else (item,))
    ]
    words = _words(_shown(segment) for segment in segments)
    if any(segment.text and segment.text.strip() for segment in segments):
        return words
    return _words(_values(task.call, segments, session)) or words


def _words(texts: Iterable[str]) -> str:
    text = ""
    for one in texts:
        text += one
        if len(text) > 2 * WORDS_CHARS:
            break
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= WORDS_CHARS else f"{words[: WORDS_CHARS - 1]}…"


def _values(
    call: Call, segments: Iterable[Segment], session: ServerSession | None
) -> Iterator[str]:
    """The texts of the inputs in these segments; of a list of messages, the first of a user."""
    inputs = {one.name: one for one in call.placeholders if one.in_out is InOut.IN}
    for segment in segments:
        if segment.input is None or (found := inputs.get(segment.input)) is None:
            continue
        known = session.variables.get(found.semantic_var_id or "") if session else None
        value = found.value if found.value is not None or known is None else known.value
        messages = value if isinstance(value, list) else [value]
        said = [one for one in messages if is_message_of(one, "user")]
        text = said[0].get("content") if said else value
        if isinstance(text, str):
            yield text[: 2 * WORDS_CHARS]


def _shown(segment: Segment) -> str:
    if segment.text is not None:
        return segment.text[: 2 * WORDS_CHARS]
    return f"{{{segment.input}}}" if segment.input is not None else ""
