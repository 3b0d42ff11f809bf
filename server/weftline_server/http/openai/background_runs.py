"""Runs a response in the background, and goes on with one of an earlier run of the server."""

from __future__ import annotations

from functools import partial
from typing import Any

from weftline.contract.errors import UnknownSession, WeftlineError
from weftline_server.http.event_stream import sse
from weftline_server.http.openai.background_events import BackgroundResponse
from weftline_server.http.openai.replies import CHAT, Reply
from weftline_server.http.openai.requests import ChatRequest
from weftline_server.http.openai.response_output import Event, Made, told
from weftline_server.http.openai.response_record import NUMBERS, ResponseRecord
from weftline_server.http.openai.submission import Running
from weftline_server.http.openai.tool_types import Offer
from weftline_server.http.state import ServerState
from weftline_server.journal.fence import SessionMoved
from weftline_server.runtime.service import NotHere

Json = dict[str, Any]


async def begin(
    state: ServerState, running: Running, made: Made, record: ResponseRecord
) -> BackgroundResponse:
    """Keep the response, and run it. Raises StorageFull."""
    note = {
        "session": running.session.id,
        "task": running.tasks[0].id,
        "own": running.own,
        "groups": made.offer.groups,
        "customs": sorted(made.offer.customs),
        "numbers": 0,
    }
    try:
        await record.begun(made.body("queued"), note)
    except BaseException:
        running.service.cancel(running.session, running.tasks[0].id)
        running.end()
        raise
    running.runs.responded(running.session)
    return _run(state, running, made, record)


async def found_running(state: ServerState, tenant: str, kept: Json) -> BackgroundResponse | None:
    """The response if its events are known here; None for one that has ended.

    Raises NotHere where another server goes on with it.
    """
    response = kept["response"]
    known = state.background.find(tenant, response["id"])
    if known is not None or "running" not in kept:
        return known
    note, service = kept["running"], state.service
    record = ResponseRecord(state.kept, tenant, kept["input"])
    offer = Offer(
        groups={name: (group, own) for name, (group, own) in note["groups"].items()},
        customs=set(note["customs"]),
    )
    made = Made.again(response, offer)
    lost = f"the session of response {response['id']!r} is gone: send its request again"
    try:
        session = service.registry.look(tenant, note["session"])
    except UnknownSession as missed:
        if isinstance(missed, NotHere) and service.lifecycle.member is not None:
            missed.message = lost  # said if no other server has it, too
            raise
        kept["response"] = made.failed(WeftlineError(lost))
        await record.ended(kept["response"])
        return None
    [task] = [one.task for one in session.tasks.values() if one.task.id == note["task"]]
    reply = Reply.new(CHAT, response["model"], None)
    running = Running(
        service, state.runs, session, (task,), note["own"], ChatRequest(messages=()), reply,
        state.prices, None, state.thoughts,
    )  # fmt: skip
    one = _run(state, running, made, record)
    if session.variable(task.writes[0]).settled:
        await one.wait()
    return one


def _run(
    state: ServerState, running: Running, made: Made, record: ResponseRecord
) -> BackgroundResponse:
    service, session = running.service, running.session
    cancel = partial(service.cancel, session, running.tasks[0].id)
    one = BackgroundResponse(made.body("queued"), made.body, cancel)
    tenant = record.tenant

    reserved = 0

    async def tell(event: Event) -> None:
        nonlocal reserved
        if event["sequence_number"] >= reserved:
            reserved = await record.reserved(made.id)
        one.tell(sse(event["type"], event), event.get("response"))

    async def work() -> None:
        nonlocal reserved
        leaves = False
        try:
            reserved = await record.reserved(made.id)
            made.number = one.first = reserved - NUMBERS
            for kind in ("created", "queued", "in_progress"):
                status = "in_progress" if kind == "in_progress" else "queued"
                await tell(made.told(kind, made.body(status)))
            async for event in told(running, made, record.ended):
                await tell(event)
        except WeftlineError as error:
            given_up = one.is_cancelled or one.fault is not None
            leaves = _goes_on_elsewhere(state, error) and not given_up
            if leaves:
                state.background.forget(tenant, made.id)
                return
            whole = made.failed(one.fault or error, is_cancelled=one.is_cancelled)
            await record.ended(whole)
            await tell(made.told(whole["status"], whole))
        finally:
            if not leaves:
                running.end()

    state.background.begin(tenant, made.id, one, work)
    return one


def _goes_on_elsewhere(state: ServerState, error: WeftlineError) -> bool:
    """Whether the calls run on at another server, or when this one runs again."""
    lifecycle = state.service.lifecycle
    is_kept = state.service.registry.journal is not None
    return isinstance(error, SessionMoved) or (lifecycle.draining and is_kept)
