"""The null engine with words as tokens: affinity, capacity and admission, tried over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.null.asgi import Serve, Server
from weftline_engine.api import OTHER_WORDS, Engine
from weftline_engine.pretend.null import NullConfig
from weftline_server.commands.engine_spec import EngineSpec
from weftline_server.commands.engines import factory
from weftline_server.config import ServerConfig
from weftline_server.prompt.words import WordTokenizer


def words_engine(**more: Any) -> Callable[[], Engine]:
    return factory(EngineSpec.of(engine="null", null_mode="words", call_it="words", **more))


async def ask(server: Server, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"model": "words", "prompt": prompt, "max_tokens": 4, **more}
    answer = await server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_word_has_one_id() -> None:
    """A word of the form `w7` has its number. Any other word has one id above them, wherever it
    stands."""
    tokenizer = WordTokenizer(2048)
    found = tokenizer.encode("w7  the cat w2048 the")
    assert found.ids[0] == 7 and found.ids[1] == found.ids[4] != found.ids[2]
    assert all(2048 <= id < 2048 + OTHER_WORDS for id in found.ids[1:])
    assert found.offsets[:2] == [(0, 2), (4, 7)]


async def test_a_prompt_is_cached_by_its_words(serve: Serve) -> None:
    """The second prompt shares forty words with the first, and finds all of them but the end of its
    last block. A different text finds nothing.
    """
    server = await serve(NullConfig(), ServerConfig(), None, {"words": words_engine()})
    text = " ".join(f"word{n}" for n in range(40))
    answers = [await ask(server, f"{text} {end}") for end in ("one", "two", "three")]
    answers.append(await ask(server, " ".join(f"other{n}" for n in range(41))))
    usages = [one["usage"] for one in answers]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert [usage["prompt_tokens"] for usage in usages] == [41] * 4
    assert cached == [0, 40, 40, 0]


async def test_the_cache_has_a_size(serve: Serve) -> None:
    """Of ten calls of 400 words at once, a cache of 1,024 tokens takes two at a time. All of them
    end, and a prompt beyond the whole cache is refused.
    """
    engine = words_engine(kv_tokens=1024, null_step_s=0.001)
    server = await serve(NullConfig(), ServerConfig(), None, {"words": engine})
    await asyncio.gather(*(ask(server, f"call{n} " * 400) for n in range(10)))
    body = {"model": "words", "prompt": "long " * 1100, "max_tokens": 4}
    refused = await server.http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert "maximum context length is 1024 tokens" in refused.json()["error"]["message"]
