"""The values of several variables as server-sent events, each pushed as soon as it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from weftline.errors import WeftlineError
from weftline_server.http.event_stream import sse
from weftline_server.runtime.driver import Driver
from weftline_server.session.session import Session


async def watch(
    driver: Driver, session: Session, variables: Sequence[str], *, parts: bool
) -> AsyncGenerator[bytes, None]:
    """One `value` or `failed` event for each of `variables`; with `parts` also its text in parts.

    A failure ends the wait for its own variable alone. The events end with the last variable;
    closing them earlier counts as leaving every variable that is not ready.
    """
    # Bounded, so that a slow reader holds up the followers and not the server's memory.
    events: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue(maxsize=256)

    async def follow(variable: str) -> None:
        try:
            if parts:
                async for chunk in driver.readers.stream(session, variable):
                    text = {"semantic_var_id": variable, "offset": chunk.offset, "text": chunk.text}
                    await events.put((sse("part", text), False))
            else:
                await driver.readers.get(session, variable)
            last = sse("value", _value(driver, session, variable))
        except WeftlineError as error:
            last = sse("failed", {"semantic_var_id": variable, **error.to_body()})
        await events.put((last, True))

    followers = [asyncio.create_task(follow(variable)) for variable in variables]
    left = len(followers)
    try:
        while left:
            event, last = await events.get()
            left -= last
            yield event
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


def _value(driver: Driver, session: Session, variable: str) -> dict[str, Any]:
    """The value, and how it was generated unless the client has set it."""
    value = {"semantic_var_id": variable, "value": session.variable(variable).value}
    primitive = session.graph.producer.get(variable)
    if primitive is None:
        return value
    producer = session.primitives[primitive]
    task, step = producer.task.task, producer.step
    assert step is not None
    assert step.usage is not None and step.reason is not None, "a ready output has finished"
    usage = {
        "prompt_tokens": step.usage.prompt_tokens,
        "cached_tokens": step.usage.cached_tokens,
        "output_tokens": step.usage.output_tokens,
        "finish_reason": step.reason.value,
    }
    return {**value, "call_id": task.id, "model": task.resource, **usage}
