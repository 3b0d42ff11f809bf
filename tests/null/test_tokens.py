"""Tokens on the wire: /tokenize, /detokenize, and prompts of token ids."""

from __future__ import annotations

from typing import Any

import pytest

from tests.null.asgi import Serve, Server
from tests.null.test_openai_tools import WEATHER
from tests.null.test_words_engine import words_engine
from weftline_engine.pretend.null import NullConfig
from weftline_server.config import ServerConfig

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "one two three"}],
    "model": "words",
}
BEGUN: dict[str, Any] = {
    "messages": [*CHAT["messages"], {"role": "assistant", "content": "w1 w2"}],
    "continue_final_message": True,
}


async def started(serve: Serve) -> Server:
    return await serve(NullConfig(), ServerConfig(), None, {"words": words_engine()})


async def ask(server: Server, path: str, status: int = 200, **body: Any) -> Any:
    answer = await server.http.post(path, json={"model": "words", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": "none"},
        {**BEGUN, "add_generation_prompt": False},
    ],
    ids=["a chat", "tools", "tools that are not offered", "a message that goes on"],
)
async def test_a_chat_has_as_many_tokens_as_its_prompt(more: dict[str, Any], serve: Serve) -> None:
    """The tokens of the tools are among them. The prompt of the same request has as many."""
    server = await started(serve)
    told = await ask(server, "/tokenize", **{**CHAT, **more})
    used = await ask(server, "/v1/chat/completions", **{**CHAT, **more, "max_tokens": 1})
    assert told["count"] == len(told["tokens"]) == used["usage"]["prompt_tokens"]
    plain = await ask(server, "/tokenize", **CHAT)
    offers = "tools" in more and more.get("tool_choice") != "none"
    assert (told["count"] - plain["count"] > 20) is offers


async def test_more_tokens_than_the_context_holds_are_counted(serve: Serve) -> None:
    """A client asks so that it can shorten its prompt."""
    server = await serve(NullConfig(), ServerConfig(), None, {"words": words_engine(kv_tokens=64)})
    assert (await ask(server, "/tokenize", prompt="w1 " * 5000))["count"] == 5000


async def test_tokens_as_text(serve: Serve) -> None:
    """vLLM's field `return_token_strs`, and the way back."""
    server = await started(serve)
    told = await ask(server, "/tokenize", prompt="w1 w7", return_token_strs=True)
    assert (told["tokens"], told["token_strs"]) == ([1, 7], ["w1", "w7"])
    assert (await ask(server, "/tokenize", prompt="w1"))["token_strs"] is None
    assert await ask(server, "/detokenize", tokens=[1, 7]) == {"prompt": "w1 w7"}
    assert await ask(server, "/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**CHAT, "chat_template": "{{ x }}"}, "chat_template"),
        ({**CHAT, "add_generation_prompt": False}, "add_generation_prompt"),
        ({**CHAT, "add_special_tokens": True}, "add_special_tokens"),
        ({"prompt": "w1", "tools": [WEATHER]}, "tools"),
        ({"prompt": "w1", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"prompt": "w1", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({**CHAT, "continue_final_message": True}, "continue_final_message"),
    ],
)
async def test_a_field_that_is_not_served_is_named(
    body: dict[str, Any], param: str, serve: Serve
) -> None:
    """It would change the tokens, so it is not passed over."""
    server = await started(serve)
    answer = await ask(server, "/tokenize", 400, **body)
    assert answer["error"]["param"] == param


@pytest.mark.parametrize("tokens", [[-1], [1, 1 << 40]])
async def test_an_id_that_is_no_token(tokens: list[int], serve: Serve) -> None:
    """It is refused on each route by its value."""
    server = await started(serve)
    says = f"{tokens[-1]}, which is no token of model 'words'"
    for path, field in (("/detokenize", "tokens"), ("/v1/completions", "prompt")):
        error = (await ask(server, path, 400, **{field: tokens}))["error"]
        assert (error["param"], error["message"]) == (field, f"{field} has {says}")


async def test_a_prompt_of_tokens(serve: Serve) -> None:
    """The answer and its usage are those of the same tokens as text, and the cache is shared."""
    server = await started(serve)
    text = " ".join(f"w{n}" for n in range(40))
    plain = await ask(server, "/v1/completions", prompt=text, max_tokens=3, temperature=0)
    ids = await ask(server, "/v1/completions", prompt=list(range(40)), max_tokens=3, temperature=0)
    assert ids["choices"] == plain["choices"]
    assert ids["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] == 40
    assert ids["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_several_prompts_of_tokens(serve: Serve) -> None:
    """Each has its choices, in order."""
    server = await started(serve)
    prompts = [[1, 2], [3, 4, 5]]
    answer = await ask(server, "/v1/completions", prompt=prompts, n=2, max_tokens=2)
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []], [1, "a"], [[1], "a"], ["a", 1], [True]])
async def test_a_prompt_that_is_none(prompt: Any, serve: Serve) -> None:
    """Empty lists, and lists of several kinds of prompts."""
    server = await started(serve)
    error = (await ask(server, "/v1/completions", 400, prompt=prompt))["error"]
    assert error["param"].startswith("prompt")


async def test_an_engine_without_a_tokenizer_takes_no_tokens(serve: Serve) -> None:
    """Only the endpoint knows what its tokens are."""
    server = await serve()
    answer = await server.http.post("/v1/completions", json={"prompt": [1, 2]})
    assert answer.status_code == 400
    assert "keeps its tokenizer to itself: send a text" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([{"tokens": [1]}, {"output": "o"}], "exactly one of"),
        ([{"output": "o", "tokens": [1]}], "'tokens' need the 'text'"),
        ([{"text": "w1", "tokens": [1]}, {"text": "w2"}, {"output": "o"}], "a whole prompt"),
        (
            [
                {"role": "user", "content": [{"text": "w1", "tokens": [1]}]},
                {"role": "assistant", "content": [{"output": "o"}]},
            ],
            "a message has no tokens",
        ),
        ([{"text": "w1", "tokens": [1 << 40]}, {"output": "o"}], "no token of model"),
    ],
)
async def test_tokens_in_a_submit(prompt: Any, says: str, serve: Serve) -> None:
    """A segment may have tokens, too, where they are the whole prompt of an output."""
    server = await started(serve)
    calls = [{"name": "a", "model": "words", "prompt": prompt, "placeholders": [
        {"name": "o", "in_out": "out", "semantic_var_id": "o"}]}]  # fmt: skip
    answer = await server.http.post("/v1/submit", json={"calls": calls, "get": ["o"]})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text
