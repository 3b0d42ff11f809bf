"""What will become of the context that a finished output leaves: who reads it next, how much of it,
and when, as far as the graph of its session knows.
"""

from __future__ import annotations

from weftline_server.graph.primitive import PrimitiveId
from weftline_server.schedule.memory.keeper import Want
from weftline_server.session.call import CallState
from weftline_server.session.session import Session

# A common beginning of fewer tokens is not worth a message.
MIN_SHARED = 32
# Calls in a row that are looked at between now and a reader.
_MOST_HOPS = 8


def want(session: Session, id: PrimitiveId) -> Want | None:
    """Who will read the context of output `id`; None if nobody will.

    A call's own next output reads all of it and at once. Another call reads what the two prompts
    have in common, once the calls that it still waits for have ended: each is taken to last as long
    as this one did. A session that stays open may continue any of its contexts at any time.
    """
    run = session.calls.get(id.call)
    if run is None or session.closed:
        return None
    if run.live:
        return Want(pause_s=0.0) if id.index + 1 == run.index else None
    hashes = session.plan.prefixes.get(id.call, ())
    found = session.reuse.readers(hashes)
    if found is not None:
        count, calls = found
        tokens = _tokens(session, id, count)
        if tokens is None or tokens >= MIN_SHARED:
            step = run.steps[id.index]
            lasted = (step.finished or 0.0) - step.queued
            hops = min(_hops(session, call, _MOST_HOPS) for call in calls)
            return Want(tokens, max(0.0, hops * lasted))
    return Want() if session.stays else None


def _tokens(session: Session, id: PrimitiveId, count: int) -> int | None:
    """About how many tokens the first `count` segments are; None for all up to the output's end."""
    run = session.calls[id.call]
    node, output = run.node, run.node.outputs[id.index]
    texts = {p.name: str(p.value) for p in node.inputs if p.semantic_var_id is None}
    texts |= {
        p.name: session.variables[p.semantic_var_id].text
        for p in node.call.placeholders
        if p.semantic_var_id is not None
    }
    before = whole = 0
    for number, segment in enumerate(node.call.segments(), 1):
        name = segment.input or segment.output
        whole += len(segment.text or "" if name is None else texts[name])
        if number == count:
            before = whole
        if segment.output == output.name:
            if count >= number:
                return None
            break
    usage = run.steps[id.index].usage
    assert usage is not None, "a finished output has its usage"
    return before * (usage.prompt_tokens + usage.output_tokens) // max(1, whole)


def _hops(session: Session, call: str, most: int) -> int:
    """How many calls in a row have to end before `call` can start."""
    if most == 0 or session.calls[call].state is not CallState.WAITING:
        return 0
    above = (one for one in session.graph.upstream(call) if session.calls[one].live)
    return 1 + max((_hops(session, one, most - 1) for one in above), default=0)
