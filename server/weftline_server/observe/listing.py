"""A tenant's sessions as JSON rows: what each runs or ran, what it cost, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from weftline.contract.protocol import Message, Segment
from weftline_server.graph.primitive import Task
from weftline_server.observe.cost import Prices
from weftline_server.session.session import ServerSession

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
    prompt = cached = output = calls = 0
    error = None
    engines: set[str] = set()
    for run in session.tasks.values():
        states[run.state.value] += 1
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


def _named(session: ServerSession) -> dict[str, str]:
    """The session's name, and that of its application."""
    first = next(iter(session.tasks.values()), None)
    if first is None:
        return {"name": "", "application": ""}
    called = first.origin.run_name or first.task.name
    return {"name": first.origin.run_name or words_of(first.task) or called, "application": called}


def words_of(task: Task) -> str:
    """The first words of a call's prompt, of its first message of a user if it has one. Inputs are
    named and not shown. Empty for a step.
    """
    if task.call is None:
        return ""
    prompt = task.call.prompt
    assert not isinstance(prompt, str), "template text is parsed when it arrives"
    asked = [one for one in prompt if isinstance(one, Message) and one.role == "user"]
    text = ""
    for item in asked[:1] or prompt:
        for segment in item.content if isinstance(item, Message) else (item,):
            text += _shown(segment)
            if len(text) > 2 * WORDS_CHARS:
                break
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= WORDS_CHARS else f"{words[: WORDS_CHARS - 1]}…"


def _shown(segment: Segment) -> str:
    if segment.text is not None:
        return segment.text[: 2 * WORDS_CHARS]
    return f"{{{segment.input}}}" if segment.input is not None else ""
