"""Advice: where the prompts of the tenant's programs part, and what to do about it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from weftline_server.http.state import ServiceDep, Tenant, other_answers, state_of
from weftline_server.observe.advice.advice_rows import MOST, advice_rows, merged_advice
from weftline_server.observe.advice.lost_state import state_row
from weftline_server.observe.advice.summary_payment import compaction_row

router = APIRouter(prefix="/v1/advice", tags=["advice"])


@router.get("")
async def list_advice(
    request: Request,
    service: ServiceDep,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    id: str | None = None,
    lengths: bool = False,
) -> dict[str, Any]:
    """Where prompts part although equal text follows, and where a model keeps no state, the most
    expensive first. Behind these are the conversations of which a summary pays, and the lines of
    accounting that are left out.

    Words of prompts are shown only where the server's log has prompts. With `lengths` each row has
    the lengths of recorded calls as they were, and as they would be after the change. Where several
    servers share a store, a program's counts are those of all of them.
    """
    state = state_of(request.app)
    told = [one for one in state.advisor.told(tenant) if id is None or one[0].id_of(one[1]) == id]
    engines = service.engines.statuses if lengths else None
    rows = advice_rows(told[:limit], values=state.config.log_prompts, engines=engines)
    if id is None and not lengths:
        programs = state.advisor.programs(tenant)
        found = [row for make in (state_row, compaction_row) for row in map(make, programs)]
        rows += [row for row in found if row is not None]
        rows += state.accounting.rows(tenant)
        rows.sort(key=lambda row: -row["lost_tokens"])
    mine = {"advice": rows[:limit], "total": max(len(told), len(rows))}
    others = await other_answers(request)
    return merged_advice([mine, *others], limit) if others else mine
