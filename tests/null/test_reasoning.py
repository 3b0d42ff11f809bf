"""How much a model thinks: the effort reaches its template, and usage counts the thoughts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.endpoints import Endpoint, streams
from tests.null.steps.wire import each
from tests.null.test_openai_faults import config
from tests.null.test_openai_tools import CALL, USER, WEATHER, chat, streamed
from tests.null.test_special_marks import TokenEngine, tokenizer
from tests.null.test_thinking import OPENED, SWITCHED
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.remote.openai.engine import OpenAIEngine

PRINTS = (
    "{% for m in messages %}{{ m.content }}{% endfor %} effort={{ reasoning_effort | default('') }}"
    " thinking={{ enable_thinking | default('') }}."
)
SEEN = NullConfig(
    mode=NullMode.SCRIPT,
    script=tuple(
        (text, text)
        for text in (
            "effort=low thinking=.",
            "effort=none thinking=False.",
            "effort=none thinking=True.",
            "effort=high thinking=.",
            "effort= thinking=.",
        )
    ),
)
THOUGHT = "Rome is in Italy."


async def responded(server: Server, **body: Any) -> Any:
    """The response, which of a stream its last event has."""
    answer = await server.http.post("/v1/responses", json={"input": "Rome?", **body})
    if not body.get("stream"):
        return answer.json()
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return json.loads(lines[-1])["response"]


@pytest.mark.parametrize(
    ("effort", "kwargs", "seen"),
    [
        ("low", {}, "effort=low thinking=."),
        ("none", {}, "effort=none thinking=False."),
        ("none", {"enable_thinking": True}, "effort=none thinking=True."),
        ("low", {"reasoning_effort": "high"}, "effort=high thinking=."),
        (None, {}, "effort= thinking=."),
    ],
)
async def test_an_effort_reaches_the_template(
    effort: str | None, kwargs: dict[str, Any], seen: str, serve: Serve, monkeypatch: Any
) -> None:
    """Under its name, and "none" as a switch, too. What the client says to the template itself goes
    first. A response names the effort in `reasoning`."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", PRINTS)
    server = await serve(SEEN)
    asked = {"reasoning_effort": effort, "chat_template_kwargs": kwargs}
    assert (await chat(server, USER, **asked))["choices"][0]["message"]["content"] == seen
    if not kwargs:
        made = await responded(server, reasoning={"effort": effort, "summary": "auto"})
        assert made["output"][0]["content"][0]["text"] == seen


async def test_an_effort_is_among_the_tokens_of_a_chat(serve: Serve, tmp_path: Path) -> None:
    """/tokenize counts the prompt that the same chat would have."""
    tokenizer(()).save(str(path := tmp_path / "tokenizer.json"))
    server = await serve(also={"marked": lambda: TokenEngine(path, PRINTS, "Hi", 4)})
    body = {"model": "marked", "messages": [{"role": "user", "content": "Rome?"}]}
    counts = [
        (await server.http.post("/tokenize", json={**body, **more})).json()["count"]
        for more in ({}, {"reasoning_effort": "low"}, {"reasoning_effort": "none"})
    ]
    assert counts == [24, 24 + len("low"), 24 + len("none" + "False")]


async def test_an_endpoint_gets_the_effort(serve: Serve, tmp_path: Path) -> None:
    """Its template runs elsewhere, so it gets the field of OpenAI's API, where a client sent it."""
    endpoint = Endpoint(streams("It is sunny."))
    async with endpoint.on(tmp_path / "e") as socket:
        server = await serve(also={"far": lambda: OpenAIEngine(config(socket))})
        made = await chat(server, USER, model="m", reasoning_effort="none")
        assert made["choices"][0]["message"]["content"] == "It is sunny."
        response = await responded(server, model="m", reasoning={"effort": "low"})
        assert response["status"] == "completed"
        await chat(server, USER, model="m")
        words = {"enable_thinking": False}
        refused = await chat(server, USER, model="m", chat_template_kwargs=words)
        assert refused["error"]["param"] == "chat_template_kwargs"
    sent = [request.get("reasoning_effort") for request in endpoint.requests]
    assert sent == ["none", "low", None]
    assert not any("chat_template_kwargs" in request for request in endpoint.requests)


@pytest.mark.parametrize(
    ("template", "begin"), [(OPENED, ""), (SWITCHED, "<think>\n")], ids=["opened", "marked"]
)
@pytest.mark.parametrize("tools", [(), (WEATHER,)], ids=["text", "call"])
async def test_usage_counts_the_thoughts(
    template: str, begin: str, tools: tuple[Any, ...], serve: Serve, tmp_path: Path
) -> None:
    """A token for each byte of them, without the marks and the space around: in chats of several
    choices and responses, whole and streamed."""
    tokenizer(()).save(str(path := tmp_path / "tokenizer.json"))
    text = f"{begin}{THOUGHT}\n</think>\n\n{CALL if tools else 'It is sunny.'}"
    server = await serve(also={"marked": lambda: TokenEngine(path, template, text, 4)})
    asked = {"model": "marked", "tools": list(tools)}
    usage = (await chat(server, USER, **asked))["usage"]
    assert usage["completion_tokens"] == len(text) + 1
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(THOUGHT)}
    twice = (await chat(server, USER, **asked, n=2))["usage"]
    assert twice["completion_tokens_details"] == {"reasoning_tokens": 2 * len(THOUGHT)}
    *_, last = await streamed(server, USER, **asked, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(THOUGHT)}
    functions: list[dict[str, Any]] = [{"type": "function", **one["function"]} for one in tools]
    for stream in (False, True):
        made = await responded(server, model="marked", tools=functions, stream=stream)
        details = made["usage"]["output_tokens_details"]
        assert details == {"reasoning_tokens": len(THOUGHT)}


async def test_each_item_of_a_list_has_its_thoughts_counted(serve: Serve, tmp_path: Path) -> None:
    """The event of the list says it beside the tokens of each item's call."""
    tokenizer(()).save(str(path := tmp_path / "tokenizer.json"))
    text = f"{THOUGHT}\n</think>\n\nIt is sunny."
    server = await serve(also={"marked": lambda: TokenEngine(path, OPENED, text, 4)})
    asks = {
        "name": "asked",
        "model": "marked",
        "separate_reasoning": True,
        "prompt": [
            {"role": "user", "content": [{"input": "item"}]},
            {"role": "assistant", "content": [{"output": "o"}]},
        ],
        "placeholders": [
            {"name": "item", "in_out": "in", "semantic_var_id": "item"},
            {"name": "o", "in_out": "out", "semantic_var_id": "asked"},
        ],
    }
    step = each(["Rome?", "Oslo?"], {"calls": [asks]}, {"asked": "all"}, item="item", name="all")
    body = {"steps": [step], "watch": ["all"]}
    events = (await server.http.post("/v1/submit", json=body)).text.splitlines()
    told = next(json.loads(line[6:]) for line in events if '"items"' in line)
    assert told["value"] == ["It is sunny."] * 2
    assert [one["reasoning_tokens"] for one in told["items"]] == [len(THOUGHT)] * 2


async def test_an_answer_without_thoughts_has_none(serve: Serve, tmp_path: Path) -> None:
    """A chat has no such field then, as without drafts. A response says 0."""
    tokenizer(()).save(str(path := tmp_path / "tokenizer.json"))
    server = await serve(also={"marked": lambda: TokenEngine(path, SWITCHED, "It is sunny.", 4)})
    usage = (await chat(server, USER, model="marked"))["usage"]
    assert "completion_tokens_details" not in usage
    made = await responded(server, model="marked")
    assert made["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


async def test_an_endpoint_gets_earlier_thoughts(serve: Serve, tmp_path: Path) -> None:
    """One that takes more than OpenAI's API has the field that vLLM, SGLang and llama.cpp read."""
    endpoint = Endpoint(streams("It is sunny."))
    said = {"role": "assistant", "content": "So.", "reasoning": THOUGHT}
    async with endpoint.on(tmp_path / "e") as socket:
        server = await serve(also={"far": lambda: OpenAIEngine(config(socket, extras=True))})
        await chat(server, USER, said, USER, model="m")
    [sent] = endpoint.requests
    assert sent["messages"] == [
        USER, {"role": "assistant", "content": "So.", "reasoning_content": THOUGHT}, USER,
    ]  # fmt: skip
