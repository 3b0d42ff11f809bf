"""Several choices, response formats and refused fields on OpenAI's endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.null.asgi import Serve
from weftline_engine.pretend.null import LatencyProfile, NullConfig, NullMode
from weftline_server.http.openai.constraint_fields import ResponseFormat

HI = {"messages": [{"role": "user", "content": "one two three"}]}


async def test_several_choices(serve: Serve) -> None:
    """Each choice is a call of its own. The usage counts the prompt once."""
    server = await serve()
    answer = (await server.http.post("/v1/chat/completions", json={**HI, "n": 3})).json()
    one = (await server.http.post("/v1/chat/completions", json=HI)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {c["message"]["content"] for c in answer["choices"]} == {
        one["choices"][0]["message"]["content"]
    }
    usage, single = answer["usage"], one["usage"]
    assert usage["prompt_tokens"] == single["prompt_tokens"]
    assert usage["completion_tokens"] == 3 * single["completion_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_several_choices_stream_side_by_side(serve: Serve) -> None:
    """Every choice has a first and a last chunk, and the usage covers all choices."""
    server = await serve(NullConfig(latency=LatencyProfile(step_s=0.002)))
    body = {**HI, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    answer = await server.http.post("/v1/chat/completions", json=body)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    *chunks, usage = (json.loads(line) for line in lines[:-1])
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 12
    texts = {0: "", 1: ""}
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == dict.fromkeys((0, 1), "user: one two three\nassistant: ")
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order != sorted(order), "neither waits for the other"
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"] == "stop"]
    assert sorted(ends) == [0, 1]


async def test_several_prompts(serve: Serve) -> None:
    """The choices of the first prompt come before those of the second."""
    server = await serve()
    body = {"prompt": ["one two", "three"], "n": 2}
    answer = (await server.http.post("/v1/completions", json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == [
        "one two",
        "one two",
        *["three"] * 2,
    ]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 6)


async def test_a_failing_choice_fails_the_response(serve: Serve) -> None:
    """One error for the whole request, streamed or not. Nothing is left behind."""
    server = await serve(NullConfig(mode=NullMode.SCRIPT, script=(("one", "fine"),)))
    body = {"prompt": ["one", "two"]}
    answer = await server.http.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "EngineFailed")
    streamed = await server.http.post("/v1/completions", json={**body, "stream": True})
    assert '"EngineFailed"' in streamed.text and "[DONE]" not in streamed.text
    assert server.service.engines.status().sessions == 0


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMATS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, {"json_schema": {"type": "object"}}),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        {"json_schema": SCHEMA},
    ),
]


@pytest.mark.parametrize(("given", "constraint"), FORMATS)
def test_a_response_format_is_a_constraint(
    given: dict[str, Any], constraint: dict[str, Any] | None
) -> None:
    """Each response_format of OpenAI's API becomes the constraint that an engine knows, or none."""
    from pydantic import TypeAdapter

    assert TypeAdapter(ResponseFormat).validate_python(given).constraint == constraint


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"logit_bias": {"1": 2}}, "logit_bias"),
    ({"cache_salt": "mine"}, "cache_salt"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"min_p": 1.5}, "min_p"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"messages": []}, "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content.0",
    ),
    ({"response_format": {"type": "json_object"}, "constraint": {"regex": "a"}}, "constraint"),
    ({"constraint": {"regex": "a", "choice": ["b"]}}, "constraint"),
    ({"constraint": {"choice": []}}, "constraint"),
    ({"constraint": {"choice": ["a", ""]}}, "constraint"),
    ({"constraint": {"regex": "a" * 70_000}}, "constraint"),
    ({"constraint": {"json_schema": {"x": "a" * 600_000}}}, "constraint"),
]


@pytest.mark.parametrize(
    ("more", "param"), REFUSED, ids=[f"{p}-{i}" for i, (_, p) in enumerate(REFUSED)]
)
async def test_refused_fields(serve: Serve, more: dict[str, Any], param: str) -> None:
    """The field is out of range, or it would change the output and is not supported."""
    server = await serve()
    answer = await server.http.post("/v1/chat/completions", json={**HI, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"cache_salt": "mine"}, "cache_salt"),
        ({"echo": True}, "echo"),
        ({"suffix": "."}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a", 2]}, "prompt.1"),
        ({"prompt": {"a": 1}}, "prompt"),
    ],
)
async def test_refused_fields_of_a_text_completion(
    serve: Serve, more: dict[str, Any], param: str
) -> None:
    """Fields that change nothing are accepted: an echo of false, the best of one."""
    server = await serve()
    fine = {"prompt": "hi", "echo": False, "best_of": 1, "user": "u", "logit_bias": {}}
    assert (await server.http.post("/v1/completions", json=fine)).status_code == 200
    answer = await server.http.post("/v1/completions", json={**fine, **more})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
