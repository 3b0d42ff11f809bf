"""Texts that a graph puts together, and what a watch says of the values of branches and lists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve, Server, call
from tests.null.steps.wire import branch, each, run

SUBS = '{"items": [{"q": "a", "to": "x"}, {"q": "b", "to": "y"}, {"q": "c", "to": "z"}]}'
PLAN = call("plan", f"{SUBS}{{{{output:subs}}}}", subs="subs")
ITEMS = {"var": "subs", "transforms": [{"op": "json_or_yaml", "key": "items"}]}
QUESTION = {"var": "item", "transforms": [{"op": "path", "keys": ["q"]}]}
PAIR = {"kind": "text", "parts": [QUESTION, {"value": ": "}, {"var": "answer"}], "out": "pair"}
ASKED = {"in_out": "in", "semantic_var_id": "item", "transforms": QUESTION["transforms"]}


def ask(name: str, out: str, shown: str = "<{{input:q}}>") -> dict[str, Any]:
    return call(name, f"{shown}{{{{output:{out}}}}}", q=ASKED, **{out: out})


async def test_a_text_is_made_of_parts(serve: Serve) -> None:
    """In a body each item has a text of its own, and a call reads them joined."""
    joint = {"in_out": "in", "semantic_var_id": "pairs",
             "transforms": [{"op": "join", "separator": "; "}]}  # fmt: skip
    last = call("last", "{{input:pairs}}{{output:o}}", pairs=joint, o="o")
    body = {"calls": [ask("ask", "answer")], "steps": [PAIR]}
    step = {**each("subs", body, {"pair": "pairs"}), "over": ITEMS}
    answer = await run(await serve(), step, calls=[PLAN, last], get=["pairs", "o"])
    assert answer["values"] == {
        "pairs": ["a: <a>", "b: <b>", "c: <c>"],
        "o": "a: <a>; b: <b>; c: <c>",
    }


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "a text has 1 to 256 parts"),
        ([{"value": "a"}, {"value": [1]}], "text 't' takes parts that are text, and part 1 is a"),
    ],
)
async def test_parts_are_texts(serve: Serve, parts: list[Any], message: str) -> None:
    """A list among the parts, or no part at all, is an error that names the part."""
    step = {"kind": "text", "name": "t", "parts": parts, "out": "o"}
    answer = await run(await serve(), step, get=["o"])
    assert message in answer["error"]["message"]


async def watched(server: Server, *steps: Any, calls: Any, watch: list[str]) -> dict[str, Any]:
    """The last event of each watched variable."""
    body = {"steps": steps, "calls": calls, "watch": watch, "close": True}
    text = (await server.http.post("/v1/submit", json=body)).text
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    return {one["semantic_var_id"]: one for one in events if "semantic_var_id" in one}


async def test_a_list_comes_with_the_facts_of_each_item(serve: Serve) -> None:
    """Tokens and finish reason, through a branch of the body; None for an item that failed."""
    answers = branch(QUESTION, {"good": {"op": "in", "value": ["a", "c"]}}, "item", "picked")
    parsed = {"in_out": "in", "semantic_var_id": "picked", "transforms": [{"op": "strip"}]}
    body = {
        "calls": [ask("ask", "good"), call("x", "{{input:p}}{{output:o}}", p=parsed, o="o")],
        "steps": [answers],
    }
    step = each("subs", body, {"picked": "all"}, on_error="value", otherwise=False)
    found = await watched(
        await serve(), {**step, "over": ITEMS}, calls=[PLAN], watch=["subs", "all"]
    )
    assert found["all"]["value"] == ["<a>", False, "<c>"], "strip fails for the item itself"
    first, second, third = found["all"]["items"]
    assert second is None and (first["output_tokens"], third["finish_reason"]) == (1, "stop")
    assert "items" not in found["subs"] and found["subs"]["finish_reason"] == "stop"
