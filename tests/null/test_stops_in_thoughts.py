"""A stop string in the thoughts of an answer is text. Behind them it ends the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.null.asgi import Serve
from tests.null.endpoints import streams
from tests.null.test_openai_faults import chat, ending, started
from tests.null.test_openai_tools import USER
from tests.null.test_thinking import OPENED, QWEN3, R1, SWITCHED
from weftline_engine import api
from weftline_engine.bookkeeping.output import Logprobs, OpOutput, StopScanner
from weftline_engine.pretend import null
from weftline_engine.pretend.null import NullConfig, NullMode
from weftline_engine.remote.llamacpp.slot_requests import AnswerEnd, SlotEvent

MARKED, OPEN = ("<think>", "</think>"), ("", "</think>")


@pytest.mark.parametrize(
    ("block", "text", "sent"),
    [
        (MARKED, "<think>a x b</think> c x d", "<think>a x b</think> c "),
        (MARKED, " \n<think>x</think>x", " \n<think>x</think>"),
        (MARKED, "a x <think>x</think>", "a "),
        (MARKED, "<think>x</thin", "<think>x</thin"),
        (MARKED, "<thi", "<thi"),
        (MARKED, "<thx", "<th"),
        (MARKED, "", ""),
        (OPEN, "a x b</think> c x d", "a x b</think> c "),
        (OPEN, "a x", "a x"),
        ((), "<think>a x b</think>", "<think>a "),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_where_a_stop_string_ends_the_text(
    block: tuple[str, ...], text: str, sent: str, size: int
) -> None:
    """However the text is cut, what is sent adds up to the same."""
    scanner = StopScanner(("x",), block)
    pieces = [scanner.push(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join(pieces) + scanner.finish() == sent


@pytest.mark.parametrize(("template", "text"), [(SWITCHED, QWEN3), (OPENED, R1)])
async def test_an_answer_is_not_ended_by_its_thoughts(
    template: str, text: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thoughts and the answer have the stop string: the thoughts are whole, and the answer ends
    before it. A prompt of text has no thoughts, so there the first one counts."""
    monkeypatch.setattr(null, "CHAT_TEMPLATE", template)
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("", text),)))
    body = {"messages": [USER], "stop": [" is "]}
    [choice] = (await server.http.post("/v1/chat/completions", json=body)).json()["choices"]
    assert choice["message"]["reasoning_content"] == "Rome is in Italy."
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It", "stop")
    lines = (await server.http.post("/v1/chat/completions", json={**body, "stream": True})).text
    parts = [json.loads(one[6:]) for one in lines.splitlines() if one.startswith("data: {")]
    said = [one["choices"][0]["delta"].get("content", "") for one in parts]
    assert "".join(said) == "It"
    plain = {"prompt": "Rome?", "stop": [" is "]}
    [choice] = (await server.http.post("/v1/completions", json=plain)).json()["choices"]
    assert choice["text"] == text.partition(" is ")[0]


async def test_an_endpoint_is_not_told_of_the_stop_strings(tmp_path: Path) -> None:
    """It would end the answer within the thoughts. The engine ends the request instead."""
    answer = streams("<think>a x", " b</think> c", " x d", " e")
    async with started(tmp_path, answer) as (engine, endpoint):
        text, end = await ending(engine, chat(stop=("x",), block=MARKED))
        assert text == "<think>a x b</think> c "
        assert isinstance(end, api.Finished) and end.reason is api.FinishReason.STOP
        assert "stop" not in endpoint.requests[0]


TOKENS = ("<think>", "a x", "</think>", " c", " x", " d")
PARAMS = api.SamplingParams(max_tokens=9, stop=("x",), block=MARKED)


class Words:
    """The text of tokens, which are places in TOKENS."""

    def push(self, tokens: Sequence[int]) -> str:
        return "".join(TOKENS[one] for one in tokens)

    def finish(self) -> str:
        return ""


def test_our_own_engine_looks_behind_the_thoughts() -> None:
    """The output goes on through the thoughts, and ends with the token of the stop string."""
    output = OpOutput(PARAMS, Words(), 1)
    logprobs = Logprobs(logprobs=(), top_tokens=(), top_logprobs=())
    ends = [output.push(at, logprobs, at_end=False, last=False) for at in range(5)]
    assert ends == [False, False, False, False, True]
    assert (part := output.unsent(ended=True)) is not None
    assert part["text"] == "<think>a x</think> c "


def test_llama_server_is_not_told_of_the_stop_strings() -> None:
    """The end of the answer is found here, as that at a token is."""
    end = AnswerEnd(PARAMS, prompt=10)
    found = [end.cut(SlotEvent(text, (at,), at + 1)) for at, text in enumerate(TOKENS[:5])]
    assert "".join(one.text for one in found) == "<think>a x</think> c "
    assert [one.reason for one in found] == [None] * 4 + [api.FinishReason.STOP]
