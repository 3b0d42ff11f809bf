"""What a program computes again because its model's state is kept at few places.

A recurrent state is not cut behind any token, unlike keys and values. The engine says of each call
how many tokens it held and had to compute again.
"""

from __future__ import annotations

import hashlib
from typing import Any

from weftline_server.observe.advice.program import Program

LEAST_TIMES = 2  # the first loss tells the engine where prompts part


def state_row(program: Program) -> dict[str, Any] | None:
    """A row of the advice, if the program has lost states."""
    times, lost = program.states_lost, program.state_tokens
    if times < LEAST_TIMES:
        return None
    calls = max(program.calls, times)
    says = (
        f"state: the model keeps no state where the prompts part, {round(lost / times):,} tokens "
        f"that the engine held are computed anew in {round(100 * times / calls)} % of {calls:,} "
        "calls: send calls that begin alike in one request, or give the engine more slots"
    )
    told = repr((program.name, program.model, program.begins, "state"))
    id = hashlib.blake2b(told.encode(errors="replace"), digest_size=6)
    same = {name: getattr(program, name) for name in ("name", "model", "engine", "is_template")}
    counts = {name: getattr(program, name) for name in ("prompt_tokens", "cached_tokens")}
    none = dict.fromkeys(("begins", "message", "role", "tool", "before", "after"))
    row = {"id": id.hexdigest(), "cause": "state", "variables": [], "offset": 0, "says": says}
    sums = {"calls": calls, "times": times, "lost_tokens": lost}
    return {**same, **counts, **none, **row, **sums}
