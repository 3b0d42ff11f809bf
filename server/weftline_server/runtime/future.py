"""The future of the context that a finished primitive leaves, as far as the graph knows it.

The future says which primitive reads the context next, how much of the context, and when.
"""

from __future__ import annotations

from weftline_server.graph.primitive import PrimitiveId
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.prompt.tool_parser import Called
from weftline_server.runtime.registry import Registry
from weftline_server.schedule.memory.keeper import Want
from weftline_server.session.session import ServerSession
from weftline_server.session.task import PrimitiveRun, RunState

# A shorter common prefix, in tokens, is not worth a message.
MIN_SHARED = 32
# The longest row of primitives between now and a reader that is looked at.
_MOST_HOPS = 8


class Foresight:
    """Memory's `Outlook`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def want(self, id: PrimitiveId) -> Want | None:
        """The future use of a finished primitive's context; None without a future reader."""
        session = self._registry.by_id(id.session)
        return None if session is None else want(session, id.primitive)

    def goes_on(self, application: str) -> bool:
        """Whether a primitive of the session is on an engine or on its way to one."""
        session = self._registry.by_id(application)
        return session is not None and session.execution.under_way > 0

    def called_tools(self, id: PrimitiveId) -> tuple[str, ...] | None:
        """The names of the tools that an output calls; None if it was offered none."""
        session = self._registry.by_id(id.session)
        primitive = None if session is None else session.graph.primitives.get(id.primitive)
        if session is None or primitive is None or not isinstance(primitive.body, PromptBody):
            return None
        body = primitive.body
        can_call = body.call.offered_tools or body.blocks is not None
        return called_tools(session, id.primitive) if can_call else None


def want(session: ServerSession, id: str) -> Want | None:
    """The future use of the context of primitive `id`; None without a future reader.

    The next output of the same call reads the whole context, at once. Another call reads the prefix
    that the two prompts share, once the calls that the reader still waits for have ended; each of
    these calls is expected to last as long as this one did. A session that stays open may continue
    any context at any time.
    """
    run = session.primitives.get(id)
    if run is None or session.ended is not None:
        return None
    if run.task.live:
        after = session.graph.primitives[run.task.current.id].after
        return Want(pause_s=0.0) if id in after else None
    reuse = session.execution.planning.reuse
    found = reuse.readers(session.plan.prefixes.get(id, ()))
    if found is not None:
        count, readers = found
        tokens = _tokens(session, run, count)
        if tokens is None or tokens >= MIN_SHARED:
            assert run.step is not None, "a finished primitive has its step"
            lasted = (run.step.finished or 0.0) - run.step.queued
            known: dict[tuple[str, int], int] = {}
            hops = min(_hops(session, reader, _MOST_HOPS, known) for reader in readers)
            return Want(tokens, max(0.0, hops * lasted))
    return Want() if session.stays else None


def called_tools(session: ServerSession, id: str) -> tuple[str, ...]:
    """The names of the tools that the output of primitive `id` calls, in its order."""
    [variable] = session.graph.primitives[id].writes
    deltas = session.variables[variable].deltas
    return tuple(delta.name for delta in deltas if isinstance(delta, Called))


def _tokens(session: ServerSession, run: PrimitiveRun, count: int) -> int | None:
    """About how many tokens `count` segments have; None for all up to the output's end."""
    body = session.graph.primitives[run.id].body
    assert isinstance(body, PromptBody), "only prompts have prefix hashes"
    if count > len(body.before):
        return None
    texts = {
        holder.name: str(holder.value)
        if holder.semantic_var_id is None
        else session.variables[holder.semantic_var_id].text
        for holder in (*body.holders, body.output)
    }
    own = len(texts[body.output.name])
    sizes = [
        len(texts[name]) if (name := segment.input or segment.output) else len(segment.text or "")
        for segment in body.before
    ]
    assert run.step is not None and run.step.usage is not None, "a finished output has its usage"
    usage = run.step.usage
    return (
        sum(sizes[:count]) * (usage.prompt_tokens + usage.output_tokens) // max(1, sum(sizes) + own)
    )


def _hops(session: ServerSession, id: str, most: int, known: dict[tuple[str, int], int]) -> int:
    """The number of primitives in a row that have to end before `id` can start.

    `known` are the answers so far. Without them, each layer of a graph multiplied the work.
    """
    if most == 0 or session.primitives[id].state is not RunState.WAITING:
        return 0
    found = known.get((id, most))
    if found is None:
        above = (one for one in session.graph.upstream(id) if session.primitives[one].live)
        found = 1 + max((_hops(session, one, most - 1, known) for one in above), default=0)
        known[id, most] = found
    return found
