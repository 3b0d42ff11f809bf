"""What `weftline serve --connect URL` serves: the endpoint's model, with that model's tokenizer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.null.endpoints import Endpoint, answer
from weftline.errors import InvalidRequest
from weftline.local import local_server
from weftline_engine.api import Description, EngineDied
from weftline_engine.remote.tokenizer_probe import PROBE
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.engines import factory

INFO = {"max_total_num_tokens": 1000, "context_length": 100}  # SGLang's
PROPS = {"total_slots": 1, "default_generation_settings": {"n_ctx": 100}}  # llama-server's
ENGINES = ("vllm", "sglang")


def words(folder: Path, first: str) -> tuple[str, list[int]]:
    """A directory with a tokenizer of words, and the ids that it gives the probe."""
    tokenizer = Tokenizer(WordLevel({first: 0, "Hello": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    return str(folder), tokenizer.encode(PROBE, add_special_tokens=False).ids


async def _answers(writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
    choice = {"text": "a", "token_ids": [1], "finish_reason": "stop"}
    meta = {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": 1,
            "finish_reason": {"type": "length"}}  # fmt: skip
    told = {"choices": [choice], "text": "a", "output_ids": [1], "meta_info": meta}
    writer.write(answer(200, json.dumps(told).encode()))


@contextmanager
def serving(*models: dict[str, Any], tokens: list[int] | None = None) -> Iterator[str]:
    """An endpoint that lists these models, in a thread of its own."""
    endpoint = Endpoint(_answers)
    endpoint.pages["/v1/models"] = json.dumps({"data": models}).encode()
    endpoint.pages["/server_info"] = json.dumps(INFO).encode()
    endpoint.pages["/props"] = json.dumps(PROPS).encode()
    endpoint.tokens = tokens
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    opened = endpoint.on_port()
    port = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def described(**settings: Any) -> Description:
    """Start the engine, and return what it says of itself."""
    engine = factory(EngineSpec.of(**settings))()

    async def start() -> Description:
        found = await engine.start()
        await engine.close()
        return found

    return asyncio.run(start())


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tokenizer_is_that_of_the_model_that_is_served(engine: str, tmp_path: Path) -> None:
    """It was SmolLM2's for whatever the endpoint served. The model's directory is where the
    endpoint has read it, and clients call the model as the endpoint does."""
    directory, ids = words(tmp_path / "llama", "world")
    model, adapter = {"id": "big", "root": directory}, {"id": "tuned", "parent": "big"}
    with serving(model, adapter, tokens=ids) as url:
        found = described(engine=engine, connect=url)
        assert (found.model, found.tokenizer) == ("big", f"{directory}/tokenizer.json")
        named = described(engine=engine, connect=url, model=directory, served="big")
        assert named.model == "llama"
        assert described(engine=engine, connect=url, call_it="mine").model == "mine"


@pytest.mark.parametrize("engine", ENGINES)
def test_another_tokenizer_is_a_start_error(engine: str, tmp_path: Path) -> None:
    """MODEL is a directory of another model. Answers to its ids would be garbage, with status
    200."""
    wrong, ids = words(tmp_path / "mistral", "world")
    _, others = words(tmp_path / "qwen", "naïve")
    assert ids != others
    with (
        serving({"id": "big"}, tokens=others) as url,
        pytest.raises(EngineDied, match=r"tokenizer of 'mistral' is not that of 'big', which the"),
    ):
        described(engine=engine, connect=url, model=wrong)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_to_give_where_no_tokenizer_is_found(engine: str, tmp_path: Path) -> None:
    """A name that is neither a path here nor a repository, several models, a wrong name, none."""
    directory, _ = words(tmp_path / "llama", "world")
    for models, served, says in (
        ([{"id": "big"}], None, r"^the tokenizer of 'big', .* give as MODEL a directory"),
        ([{"id": "a", "root": directory}, {"id": "b"}], None,
         r"lists 2 models \(a, b\): choose one with --served NAME$"),
        ([{"id": "a", "root": directory}], "b", r"serves no model 'b': it lists a$"),
        ([], None, r"lists 0 models \(none\): choose"),
    ):  # fmt: skip
        with serving(*models) as url, pytest.raises(InvalidRequest, match=says):
            factory(EngineSpec.of(engine=engine, connect=url, served=served))
    with pytest.raises(InvalidRequest, match=r"does not tell what it serves, because the endpoint"):
        factory(EngineSpec.of(engine=engine, connect="http://127.0.0.1:1"))


@pytest.mark.parametrize("engine", [*ENGINES, "llamacpp", "openai"])
def test_served_names_a_model_that_the_endpoint_lists(engine: str, tmp_path: Path) -> None:
    """With every engine of a running endpoint, another name is an error at the start."""
    directory, ids = words(tmp_path / "llama", "world")
    model = {} if engine in ("llamacpp", "openai") else {"model": directory}
    with serving({"id": "big"}, tokens=ids) as url:
        assert described(engine=engine, connect=url, served="big", **model)
        with pytest.raises(EngineDied, match="it has no model 'small': it has big"):
            described(engine=engine, connect=url, served="small", **model)


def test_serve_with_an_address_serves_what_is_there() -> None:
    """`weftline serve --connect URL` served SmolLM2 of its own. The endpoint is a weftline with the
    null engine."""
    with (
        local_server("--engine", "null", "--call-it", "theirs") as behind,
        local_server("--connect", behind) as url,
    ):
        listed = httpx.get(f"{url}/v1/models").json()["data"]
        assert [one["id"] for one in listed] == ["theirs"]
        body = {"messages": [{"role": "user", "content": "an echo"}], "max_tokens": 9}
        said = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert "an echo" in said["choices"][0]["message"]["content"]
