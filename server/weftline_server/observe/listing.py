"""A tenant's sessions as JSON rows: what each runs or ran, what it cost, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from weftline_server.observe.cost import Prices
from weftline_server.session.session import Session

MOST = 1000  # rows of a list
# Tasks that are added up in one turn of the event loop: about a millisecond.
TURN_TASKS = 1000


async def listing(sessions: Sequence[Session], prices: Prices) -> list[dict[str, Any]]:
    """A row for each session.

    Long lists are made in many turns of the event loop, so that other requests run in between.
    """
    rows, tasks = [], 0
    now = time.monotonic()  # the clock of all sessions
    wall = time.time() - now
    for session in sessions:
        rows.append(row(session, now, wall) | prices.shown(prices.of_session(session)))
        tasks += len(session.tasks)
        if tasks >= TURN_TASKS:
            tasks = 0
            await asyncio.sleep(0)
    return rows


def row(session: Session, now: float, wall: float) -> dict[str, Any]:
    """One session. `wall` is the difference of the wall clock to the sessions' clock.

    `name` is that of its first call. `age_s` counts to now, or to its end. Tokens are those of the
    outputs that have ended. `engines` are those that ran something of it.
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
    first = next(iter(session.tasks.values()), None)
    end = now if session.ended is None else session.ended
    return {
        "session_id": session.id,
        "name": "" if first is None else first.task.name,
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
