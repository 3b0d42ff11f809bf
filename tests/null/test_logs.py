"""Structured logs: a line for each ended call. It has the call's texts only on request."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.null.asgi import Serve, call
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig
from weftline_server.observe.logs import FIELDS, LogFormat, configure


@pytest.fixture(autouse=True)
def no_handlers() -> None:
    """`configure` closes the handlers that it finds. tests/conftest.py restores them afterwards."""
    logging.getLogger().handlers.clear()


async def run_two(serve: Serve, config: ServerConfig) -> str:
    """Run a call that succeeds, and a reader of it whose transform fails. Return the
    session's id.
    """
    server = await serve(NullConfig(), config)
    session = await server.session()
    bad = {"in_out": "out", "semantic_var_id": "y", "transforms": [{"op": "json"}]}
    await server.submit(
        session,
        call("first", "secret word{{output:x}}", x="x"),
        call("second", "Of {{input:x}}:{{output:y}}", x="x", y=bad),
    )
    assert (await server.get(session, "y")).status_code == 422
    return session


def of_calls(said: str) -> list[dict[str, Any]]:
    """Return the lines about calls."""
    made = [json.loads(line) for line in said.splitlines()]
    return [line for line in made if line["logger"] == "weftline.calls"]


async def test_a_line_of_json_for_each_call(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line has ids, name, phases, tokens and the error's type. The level of other lines stays."""
    configure(LogFormat.JSON, "warning")
    session = await run_two(serve, ServerConfig())
    logging.getLogger("weftline.other").info("not at this level")
    said = capsys.readouterr().err
    assert "not at this level" not in said
    first, second = of_calls(said)
    assert (first["message"], first["state"], first["name"]) == ("call done", "done", "first")
    assert first["session"] == second["session"] == session
    assert first["call"].startswith("c_") and first["call"] != second["call"]
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == (2, 0, 2)
    assert all(first[f"{phase}_s"] >= 0 for phase in ("queue", "fill", "generate", "transform"))
    assert (first["engine"], first["error"], first["tenant"]) == ("null", None, "local")
    assert (second["state"], second["error"]) == ("failed", "TransformFailed")
    assert second["failed_first"] == "second"
    assert first["time"].endswith("+00:00") and first["level"] == "info"


async def test_no_line_holds_texts(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither prompt nor output appears, nor the parser's message, which quotes the output."""
    configure(LogFormat.JSON, "info")
    await run_two(serve, ServerConfig())
    said = capsys.readouterr().err
    assert len(of_calls(said)) == 2
    assert "secret" not in said


async def test_no_line_holds_a_key(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """A right key, a wrong one, and one in a place where it does not belong; at every level."""
    configure(LogFormat.JSON, "debug")
    server = await serve(config=ServerConfig(keys={"secret-key": "a"}))
    right, wrong = ({"Authorization": f"Bearer {key}"} for key in ("secret-key", "secret-guess"))
    assert (await server.http.get("/v1/models", headers=right)).status_code == 200
    assert (await server.http.get("/v1/models", headers=wrong)).status_code == 401
    assert (await server.http.get("/v1/models?key=secret-key")).status_code == 401
    both = capsys.readouterr()
    lines = [json.loads(line) for line in both.err.splitlines()]
    assert lines and not any(line["logger"].startswith("uvicorn.access") for line in lines)
    ours = [line for line in lines if not line["logger"].startswith(("httpx2", "httpcore"))]
    assert "secret" not in json.dumps(ours) + both.out  # httpx2 is the test's own client


async def test_lines_hold_texts_when_the_operator_asks(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line has the rendered prompt and each output's text."""
    configure(LogFormat.JSON, "warning")
    await run_two(serve, ServerConfig(log_prompts=True))
    first, second = of_calls(capsys.readouterr().err)
    assert (first["prompt"], first["outputs"]) == ("secret word", {"x": "secret word"})
    assert (second["prompt"], second["outputs"]) == (
        "Of secret word:",
        {"y": "Of secret word:"},
    )


async def test_text_has_calls_from_level_info_on(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """At level warning, calls that succeeded have no lines."""
    configure(LogFormat.TEXT, "warning")
    await run_two(serve, ServerConfig())
    assert "weftline.calls" not in capsys.readouterr().err
    configure(LogFormat.TEXT, "info")
    await run_two(serve, ServerConfig())
    said = [line for line in capsys.readouterr().err.splitlines() if "weftline.calls" in line]
    assert " INFO weftline.calls: call done session=" in said[0]
    assert ' name="first"' in said[0] and ' error="TransformFailed"' in said[1]


def test_a_line_stays_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Newlines in a field or a message start no second line. A stack trace is a field."""
    configure(LogFormat.JSON, "warning")
    fields = {FIELDS: {"name": 'two\nlines "quoted"'}}
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("weftline.app").exception("one\ntwo", extra=fields)
    [line] = capsys.readouterr().err.splitlines()
    made = json.loads(line)
    assert (made["name"], made["message"]) == ('two\nlines "quoted"', "one\ntwo")
    assert made["exception"].endswith("ValueError: broken")
