"""Transforms of long values run in a worker process and give the same results as on the loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from weftline.contract import transforms
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.lowering.bounds import is_large
from weftline_server.runtime.workers import Workers

LONG = [{"name": f"item {i}", "words": "lorem ipsum " * 4} for i in range(1000)]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Record for each transformed value the length of its text, and whether the event loop
    ran it.
    """
    seen: list[tuple[int, bool]] = []

    def watched(run: Callable[..., Any], here: bool) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            *_, specs, value = args
            if specs:
                seen.append((len(value) if isinstance(value, str) else -1, here))
            return run(*args)

        return noted

    monkeypatch.setattr("weftline.contract.transforms.run", watched(transforms.run, True))
    monkeypatch.setattr(Workers, "run", watched(Workers.run, False))
    return seen


def wanting(name: str, prompt: str, **more: Any) -> dict[str, Any]:
    """A call whose output is parsed as JSON."""
    out = {"in_out": "out", "semantic_var_id": name, "transforms": [{"op": "json"}]}
    return call(
        name, prompt + "{{output:o}}", o={**out, "sampling": {"max_tokens": 100_000}}, **more
    )


async def test_long_outputs_and_inputs_leave_the_loop_free(
    serve: Serve, places: list[tuple[int, bool]]
) -> None:
    """A long output, a short one, and an input that takes a part of the long one."""
    text = json.dumps(LONG)
    script = (("long", text), ("short", '{"a": 1}'), ("item 7", "fine"))
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=script))
    session = await server.session()
    path = [{"op": "path", "keys": [7, "name"]}]
    part = {"in_out": "in", "semantic_var_id": "big", "transforms": path}
    await server.submit(
        session,
        wanting("big", "long"),
        wanting("small", "short"),
        call("use", "{{input:x}}{{output:u}}", x=part, u="u"),
    )
    assert (await server.get(session, "big")).json()["value"] == LONG
    assert (await server.get(session, "small")).json()["value"] == {"a": 1}
    assert (await server.get(session, "u")).json()["value"] == "fine"
    assert sorted(set(places)) == [(-1, False), (8, True), (len(text), False)]


async def test_a_long_output_that_is_not_json_fails_its_variable(
    serve: Serve, places: list[tuple[int, bool]]
) -> None:
    """It fails with the parser's message. Closing the session meanwhile does no harm."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", "no json " * 8000),)))
    session = await server.session()
    await server.submit(session, wanting("big", "x"))
    answer = await server.get(session, "big")
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "TransformFailed")
    assert places == [(len("no json " * 8000), False)]
    await server.submit(session, wanting("again", "x"))
    assert (await server.http.delete(f"/v1/session/{session}")).status_code == 200


async def test_a_long_text_without_transforms_stays_where_it_is(
    serve: Serve, places: list[tuple[int, bool]]
) -> None:
    """It is the value itself: no process sees it, and no early fill leaves it out."""
    text = "word " * 20_000
    server = await serve()
    session = await server.session()
    await server.http.put(f"/v1/session/{session}/variable/v", json={"value": text})
    out = {"in_out": "out", "semantic_var_id": "o", "sampling": {"max_tokens": 100_000}}
    await server.submit(session, call("use", "{{input:v}}{{output:o}}", v="v", o=out))
    assert (await server.get(session, "o")).json()["value"] == text
    assert places == [] and not is_large((), text) and is_large(({"op": "strip"},), text)
