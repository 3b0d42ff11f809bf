"""The advisor: what it says of programs whose prompts part too early, to whom, and at what cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.null.advised import (
    FAULTY,
    RULES,
    SOUND,
    Advised,
    Requests,
    a_clock_in_a_template,
    a_clock_in_a_text,
    chat,
    filled,
    said,
)
from tests.null.asgi import Serve, Server, call
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_server.config import ServerConfig

SHOWN = ServerConfig(log_prompts=True)


async def send(server: Server, requests: Requests, headers: Any = None) -> None:
    """Send the requests of a program, one after the other."""
    request = next(requests)
    while True:
        route, body = request
        answer = await server.http.post(route, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        choices = answer.json().get("choices")
        try:
            request = requests.send(choices[0]["message"]["content"] or "" if choices else "")
        except StopIteration:
            return


async def advice(server: Server, headers: Any = None) -> list[dict[str, Any]]:
    answer = await server.http.get("/v1/advice", headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["advice"]
    return found


@pytest.mark.parametrize("program", FAULTY, ids=lambda one: one.requests.__name__)
async def test_a_fault_is_named(serve: Serve, program: Advised) -> None:
    """One sentence says where the prompts part, what that costs, and what to do about it."""
    server = await serve()
    await send(server, program.requests())
    assert [row["says"] for row in await advice(server)] == [program.says]


@pytest.mark.parametrize("program", SOUND, ids=lambda one: one.__name__)
async def test_a_sound_program_gets_no_advice(
    serve: Serve, program: Callable[[], Requests]
) -> None:
    """Its prompts part where they must: at new messages, or at the end."""
    server = await serve()
    await send(server, program())
    assert await advice(server) == []


async def test_a_row_has_the_numbers_of_its_sentence(serve: Serve) -> None:
    """Counts are of the calls that were compared: the first one has nothing before it."""
    server = await serve(NullConfig(), SHOWN)
    await send(server, a_clock_in_a_template())
    (row,) = await advice(server)
    assert row == {
        "id": row["id"],
        "name": "ask",
        "model": "null",
        "engine": "null",
        "is_template": True,
        "begins": "It is {now}. Be brief. {rules}{question}",
        "cause": "variable",
        "message": 0,
        "role": "system",
        "variables": ["now"],
        "tool": None,
        "offset": 4,
        "calls": 5,
        "times": 5,
        "lost_tokens": 1045,
        "prompt_tokens": 1055,
        "cached_tokens": 0,
        "before": "12:04",
        "after": "12:05",
        "says": FAULTY[0].says,
    }
    assert len(row["id"]) == 12


async def test_words_of_prompts_are_shown_only_where_the_log_has_them(serve: Serve) -> None:
    """Without --log-prompts no row has a word of a value. The text of a template stays, since it
    is a part of the program.
    """
    hidden, shown = await serve(), await serve(NullConfig(), SHOWN)
    for server in (hidden, shown):
        await send(server, a_clock_in_a_template())
        await send(server, a_clock_in_a_text())
    keys = ("begins", "before", "after")
    assert [tuple(row[key] for key in keys) for row in await advice(hidden)] == [
        ("It is {now}. Be brief. {rules}{question}", None, None),
        (None, None, None),
    ]
    assert "12:0" not in str(await advice(hidden))
    assert [tuple(row[key] for key in keys) for row in await advice(shown)] == [
        ("It is {now}. Be brief. {rules}{question}", "12:04", "12:05"),
        (
            "It is 12:00. rule0 rule1 rule2 rule3 rule4 rule5 rule6 rule7",
            "It is 12:04. rule0 rule1 rule2 rule3 rule4 rule5 rule6 rule7",
            "It is 12:05. rule0 rule1 rule2 rule3 rule4 rule5 rule6 rule7",
        ),
    ]


async def test_tenants_see_only_their_own(serve: Serve) -> None:
    """Two tenants send halves of one program in turn. Neither is compared with the other."""
    config = ServerConfig(keys={"key-a": "a", "key-b": "b"})
    server = await serve(NullConfig(), config)
    a, b = ({"authorization": f"Bearer key-{name}"} for name in "ab")
    for number, request in enumerate(a_clock_in_a_template()):
        headers = a if number % 3 == 0 else b
        await server.http.post(request[0], json=request[1], headers=headers)
    assert [row["calls"] for row in await advice(server, a)] == []  # one comparison is no habit
    assert [row["calls"] for row in await advice(server, b)] == [3]
    assert (await server.http.get("/v1/advice")).status_code == 401


async def test_a_program_that_was_mended_loses_its_advice(serve: Serve) -> None:
    """The clock is gone from the system message. After 120 sound calls the fault was in less than
    one call in twenty, which is worth no advice.
    """
    server = await serve()
    await send(server, a_clock_in_a_text())
    assert [row["calls"] for row in await advice(server)] == [5]
    for turn in range(120):
        route, body = chat([said("system", RULES), said("user", f"Why {turn}?")])
        await server.http.post(route, json=body)
        if turn == 19:
            assert [(row["times"], row["calls"]) for row in await advice(server)] == [(6, 25)]
    assert await advice(server) == []


async def test_lengths_hold_no_text(serve: Serve) -> None:
    """With `lengths` a row has each recorded call before and after the change: segments by number
    with their tokens. The clock is number 1, and then stands behind the rules.
    """
    server = await serve()
    await send(server, a_clock_in_a_template())
    (row,) = await advice(server)
    answer = (await server.http.get(f"/v1/advice?lengths=true&id={row['id']}")).json()
    lengths = answer["advice"][0]["lengths"]
    now, then = lengths["now"], lengths["then"]
    assert [text for text, _ in now[0]["segments"]] == [0, 1, 2, 3, 4]
    assert [text for text, _ in then[0]["segments"]] == [0, 2, 3, 1, 4]
    assert [text for text, _ in then[1]["segments"]] == [0, 2, 3, 5, 6]
    assert {one["output_tokens"] for one in (*now, *then)} == {4}
    assert lengths["engine"] == {"kv_tokens": None, "step_s": None, "fill_s": None, "chunk": None}
    other = (await server.http.get("/v1/advice?id=other")).json()
    assert other == {"advice": [], "total": 0}


async def test_templates_of_one_name_are_told_apart(serve: Serve) -> None:
    """Two templates in turn, with half of their text in common. Each is compared with itself. Items
    of a map differ in the numbers of their names, and are of one program.
    """
    server = await serve()
    for turn in range(4):
        for number, begin in enumerate(("Translate ", "Judge ")):
            prompt = [["system", begin, "text", RULES], ["user", "Go on."]]
            route, body = filled(f"call[{number + 2 * turn}]", prompt, text=f"{begin}{turn}")
            await server.http.post(route, json=body)
    rows = await advice(server)
    assert [(row["name"], row["calls"], row["begins"][:12]) for row in rows] == [
        ("call[#]", 3, "Judge {text}"),
        ("call[#]", 3, "Translate {t"),
    ]


async def test_a_call_that_fails_is_not_compared(serve: Serve) -> None:
    """An engine that refuses every prompt has computed none of them."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT))
    for route, body in a_clock_in_a_template():
        assert (await server.http.post(route, json=body)).status_code == 502
    assert await advice(server) == []


async def test_values_of_variables_are_compared(serve: Serve) -> None:
    """The chain reads a variable that another call writes: its text is the input's value. A list of
    messages in a variable is compared message by message.
    """
    server = await serve(NullConfig(), SHOWN)
    for turn in range(3):
        session = await server.session()
        history = [said("user", f"{turn}"), said("assistant", "Yes.")]
        await server.http.put(f"/v1/session/{session}/variable/history", json={"value": history})
        first = call("first", f"Name {turn} {{{{output:person}}}}", person="person")
        prompt = [
            {"role": "system", "content": [{"text": "Be brief for "}, {"input": "person"}]},
            {"input": "history"},
            {"role": "user", "content": [{"text": RULES}]},
            {"role": "assistant", "content": [{"output": "answer"}]},
        ]
        placeholders = [
            {"name": "person", "in_out": "in", "semantic_var_id": "person"},
            {"name": "history", "in_out": "in", "semantic_var_id": "history"},
            {"name": "answer", "in_out": "out", "semantic_var_id": "answer"},
        ]
        second = {"name": "second", "prompt": prompt, "placeholders": placeholders}
        await server.submit(session, first, second)
        await server.get(session, "answer")
    (row,) = await advice(server)
    assert (row["name"], row["variables"], row["before"], row["after"]) == (
        "second",
        ["person"],
        "Name 1 ",
        "Name 2 ",
    )
    assert row["says"] == (
        "system message, variable `person`, 210 tokens behind it are computed anew in 100 % of 2 "
        "calls: move it to the end of the prompt"
    )
