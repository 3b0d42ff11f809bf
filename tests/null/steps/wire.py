"""Steps as they are on the wire, and one request that runs them."""

from __future__ import annotations

from typing import Any

from tests.null.asgi import Server


def branch(on: Any, cases: dict[str, Any], default: str, out: str, **more: Any) -> dict[str, Any]:
    """A branch; `cases` maps the variable of a side to its predicate."""
    source = {"var": on} if isinstance(on, str) else on
    listed = [{"when": when, "take": take} for take, when in cases.items()]
    step = {"kind": "branch", "on": source, "cases": listed, "default": default, "out": out}
    return {**step, **more}


def each(over: Any, body: dict[str, Any], collect: dict[str, str], **more: Any) -> dict[str, Any]:
    """An each over a variable or a constant list."""
    source = {"var": over} if isinstance(over, str) else {"value": over}
    return {"kind": "each", "over": source, "body": body, "collect": collect, **more}


def loop(
    carry: dict[str, str], after: dict[str, str], body: dict[str, Any], until: Any, **more: Any
) -> dict[str, Any]:
    return {"kind": "loop", "carry": carry, "next": after, "body": body, "until": until, **more}


async def run(server: Server, *steps: Any, calls: Any = (), get: Any = ()) -> dict[str, Any]:
    """Run a whole application: its values by variable, its graph, or its error."""
    body = {"steps": steps, "calls": calls, "get": get, "graph": True, "close": True}
    answer: dict[str, Any] = (await server.http.post("/v1/submit", json=body)).json()
    return answer


def states(answer: dict[str, Any]) -> dict[str, str]:
    """The state of each call and step by name."""
    graph = answer["graph"]
    return {one["name"]: one["state"] for one in (*graph["calls"], *graph["steps"])}
