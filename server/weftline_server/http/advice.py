"""Advice: where the prompts of the tenant's programs part, and what to do about it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from weftline_server.http.state import Tenant, state_of
from weftline_server.observe.advice.view import advice_rows

router = APIRouter(prefix="/v1/advice", tags=["advice"])


@router.get("")
async def list_advice(request: Request, tenant: Tenant) -> dict[str, Any]:
    """Where prompts part although equal text follows, the most expensive first.

    Words of prompts are shown only where the server's log has prompts.
    """
    state = state_of(request.app)
    rows = advice_rows(state.advisor, tenant, values=state.config.log_prompts)
    return {"advice": rows}
