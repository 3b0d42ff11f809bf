"""Advice as a user asks for it: with both clients, and with `weftline advise`."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.null.asgi import Serve
from weftline import AsyncClient, Client, Output, semantic_function
from weftline_server.cli import main
from weftline_server.commands import advise
from weftline_server.config import ServerConfig
from weftline_server.http.reference.routes import ANSWERS

SHORT = Output(max_tokens=3)
RULES = "Answer from the handbook and say where it stands. " * 12  # 108 words, which are tokens
SAYS = (
    "variable `now`, 112 tokens behind it are computed anew in 100 % of 3 calls: "
    "move it to the end of the prompt"
)


def answer(now: Any, question: Any, text: Any = SHORT) -> Any:
    """A clock stands before the rules."""


answer.__doc__ = f"It is {{{{input:now}}}}. {RULES}{{{{input:question}}}} {{{{output:text}}}}"
answered = semantic_function(answer)


async def asked(serve: Serve, *, logs: bool, lengths: bool = False) -> list[dict[str, Any]]:
    """The advice of a server after four calls, a minute apart."""
    server = await serve(config=ServerConfig(log_prompts=logs))
    transport = httpx2.ASGITransport(server.app)
    async with AsyncClient("http://t", transport=transport) as client:
        assert await client.advice() == []
        for minute in range(4):
            async with client.session():
                await answered(f"09:0{minute}\x1b[2J", "Who may enter?")
        return await client.advice(lengths=lengths)


def answering(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> Any:
    """A synchronous client of a server that advises `rows`; the command uses it, too."""

    def serve(request: httpx2.Request) -> httpx2.Response:
        assert (request.method, request.url.path) == ("GET", "/v1/advice")
        limit = int(request.url.params["limit"])
        return httpx2.Response(200, json={"advice": rows[:limit], "total": len(rows)})

    client = partial(Client, transport=httpx2.MockTransport(serve))
    monkeypatch.setattr(advise, "Client", client)
    return client


async def test_both_clients_return_the_rows(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the fields of the reference. Nothing is advised before a program has run."""
    rows = await asked(serve, logs=False)
    assert [(row["name"], row["says"], row["before"]) for row in rows] == [("answer", SAYS, None)]
    (example,) = ANSWERS["GET", "/v1/advice"].example["advice"]
    assert set(rows[0]) == set(example)
    with answering(monkeypatch, [*rows, *rows])() as client:
        assert client.advice() == [*rows, *rows]
        assert client.advice(limit=1) == rows


async def test_the_command_prints_a_sentence_and_what_was_lost(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The two texts are printed where the server shows them, and cannot steer the terminal."""
    rows = await asked(serve, logs=True)
    answering(monkeypatch, rows)
    assert main(["advise"]) == 0
    lost, prompt = rows[0]["lost_tokens"], rows[0]["prompt_tokens"]
    assert capsys.readouterr().out.splitlines() == [
        f"answer: {SAYS}",
        f"    lost so far: {lost:,} of {prompt:,} prompt tokens",
        r"    before: 09:02\x1b[2J",
        r"    after:  09:03\x1b[2J",
    ]
    answering(monkeypatch, [row | {"before": None, "after": None} for row in rows])
    assert main(["advise"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


async def test_the_command_prints_json_and_as_many_as_wanted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--limit keeps the costliest, which come first."""
    (row,) = await asked(serve, logs=False)
    answering(monkeypatch, [row, row | {"id": "second"}])
    assert main(["advise", "--json", "--limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == row


async def test_the_command_tries_the_change(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the clock in front, 112 of 119 tokens are cached from the second call on. JSON has
    the figures and no lengths.
    """
    rows = await asked(serve, logs=False, lengths=True)
    # On a busy machine the calls come later, and more of their prompts is cached by then.
    for series in ("now", "then"):
        for number, one in enumerate(rows[0]["lengths"][series]):
            one["at_s"] = number / 100
    answering(monkeypatch, rows)
    # The command's event loop has simulated time, and cannot run inside this one.
    assert await asyncio.to_thread(main, ["advise", "--try"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(
        "    tried: 4 recorded calls, simulated with usual times of a small CPU: "
    )
    assert await asyncio.to_thread(main, ["advise", "--try", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert "lengths" not in row
    assert (row["trial"]["now"]["cached"], row["trial"]["then"]["cached"]) == (0.0065, 0.7241)


def test_the_command_says_so_where_there_is_no_advice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and exit code 0: a sound program is no failure."""
    answering(monkeypatch, [])
    assert main(["advise"]) == 0
    assert capsys.readouterr().out == f"{advise.NOTHING}\n"
    assert main(["advise", "--json"]) == 0
    assert capsys.readouterr().out == ""
