"""One call as JSON: its prompt in segments, with the values that stand in it, and its outputs."""

from __future__ import annotations

from typing import Any

from weftline.contract.errors import UnknownCall
from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline_server.observe.client_tools import ClientToolRun, client_tools, tool_view
from weftline_server.observe.cost import Prices
from weftline_server.observe.placement_view import placement_view
from weftline_server.observe.view import task_view
from weftline_server.prompt.render import value_text
from weftline_server.session.session import ServerSession

SHOWN_CHARS = 20_000  # of one segment; `chars` says how many it has


def call_view(
    session: ServerSession, id: str, prices: Prices, *, whole: bool = False
) -> dict[str, Any]:
    """A task of the session with its prompt. A step that is no call has none, and a tool of the
    client has the arguments and the result.

    `whole` is as for `graph_view`. Raises UnknownCall.
    """
    run = session.tasks.get(id)
    if run is None:
        tool = next((one for one in client_tools(session) if one.id == id), None)
        if tool is not None:
            return _tool(session, tool)
        raise UnknownCall(f"the session has no call {id[:64]!r}", param="call_id")
    call = run.task.call
    segments = [] if call is None else segments_of(session, call, run.task.writes)
    return {
        **task_view(session, run),
        "placement": placement_view(run, whole),
        "segments": segments,
        **prices.shown(prices.of_task(run)),
    }


def _tool(session: ServerSession, tool: ClientToolRun) -> dict[str, Any]:
    """A tool that the client ran, as a step with two texts."""
    view = tool_view(session, tool)
    texts = {"arguments": tool.arguments, "result": result_of(session, tool)}
    return {
        "step_id": view.pop("tool_id"),
        **view,
        "kind": "tool",
        "resource": "the client",
        "inputs": [tool.variable],
        "outputs": [],
        "error": None,
        "placement": [],
        "segments": [_constant(role, text) for role, text in texts.items() if text],
    }


def result_of(session: ServerSession, tool: ClientToolRun) -> str:
    """The result of a tool as it stands in the prompt of the call that has read it."""
    read_by = session.tasks.get(tool.read_by)
    if read_by is None or (call := read_by.task.call) is None:
        return ""
    holders = {holder.name: holder for holder in call.placeholders}
    for item in call.prompt:
        if isinstance(item, Message) and item.tool_call_id == tool.call:
            return "".join(_segment(session, one, holders, {})["text"] for one in item.content)
    return ""


def _constant(role: str, text: str) -> dict[str, Any]:
    return {
        "role": role,
        "kind": "constant",
        "name": None,
        "semantic_var_id": None,
        "text": text[:SHOWN_CHARS],
        "chars": len(text),
        "transforms": [],
    }


def _bound(call: Call, writes: tuple[str, ...]) -> list[tuple[str, str]]:
    """The outputs of the call by name; the server has chosen the variables of some."""
    outputs = [p.name for p in call.placeholders if p.in_out is InOut.OUT]
    return list(zip(outputs, writes, strict=True))


def segments_of(
    session: ServerSession, call: Call, writes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The prompt of a call that writes these variables, with the values that stand in it."""
    outputs = dict(_bound(call, writes))
    holders = {holder.name: holder for holder in call.placeholders}
    found = []
    for item in call.prompt:
        assert not isinstance(item, str), "template text is parsed when it arrives"
        role = item.role if isinstance(item, Message) else None
        for segment in item.content if isinstance(item, Message) else (item,):
            found.append({"role": role, **_segment(session, segment, holders, outputs)})
    return found


def _segment(
    session: ServerSession,
    segment: Segment,
    holders: dict[str, Placeholder],
    outputs: dict[str, str],
) -> dict[str, Any]:
    if segment.text is not None:
        kind, name, variable, text = "constant", None, segment.from_var, segment.text
    else:
        name = segment.output if segment.output is not None else segment.input
        assert name is not None, "a segment is a text, an input or an output"
        holder = holders[name]
        kind = "input" if segment.output is None else "output"
        variable = outputs.get(name, holder.semantic_var_id)
        text = value_text(holder.value) if variable is None else _text_of(session, variable)
    holder_transforms = () if name is None else holders[name].transforms
    return {
        "kind": kind,
        "name": name,
        "semantic_var_id": variable,
        "text": text[:SHOWN_CHARS],
        "chars": len(text),
        "transforms": [str(spec.get("op")) for spec in holder_transforms],
    }


def _text_of(session: ServerSession, variable: str) -> str:
    """The text of a variable so far; a value that is no text as JSON."""
    found = session.variables[variable]
    return found.text or ("" if found.value is None else value_text(found.value))
