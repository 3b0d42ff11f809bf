"""The load of the engine comparison: prompts of a known length, and a lean client for both engines.

The client shares the cores with the server that it measures, so it reads lines from a plain socket.
An HTTP library took as long for the events of 64 streams as a step of the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

# Prompt and output tokens of a decoding stream, and output tokens after a shared prefix.
PROMPT, OUTPUT, SHARED_OUTPUT = 32, 32, 48
_WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research air teacher force education
"""


class Prompts:
    """Makes texts of a given number of tokens with different beginnings, so that no cache helps."""

    def __init__(self, model: Path) -> None:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        known = [f" {word}" for word in _WORDS.split()]
        self._words = [w for w in known if len(tokenizer.encode(w, add_special_tokens=False)) == 1]
        self._seeds = itertools.count(time.time_ns())

    def text(self, tokens: int) -> str:
        rng = random.Random(next(self._seeds))
        return "".join(rng.choices(self._words, k=tokens))


@dataclass(slots=True)
class Stream:
    """One request's answer: the arrival of each chunk, in seconds after the burst was sent."""

    tokens: int
    chunks: list[float] = field(default_factory=list)


class NoText(RuntimeError):
    """All tokens of an answer are special ones. Random weights may repeat such a token."""


def burst(port: int, prompts: Sequence[str], output: int) -> list[Stream]:
    """Send all prompts at once, and read all answers to their ends.

    Raises RuntimeError if a request is refused, and NoText if an answer has no text.
    """

    async def all_of_them() -> list[Stream]:
        start = time.perf_counter()
        return await asyncio.gather(*(_ask(port, text, output, start) for text in prompts))

    return asyncio.run(all_of_them())


async def _ask(port: int, prompt: str, output: int, start: float) -> Stream:
    body = {
        "model": "default",
        "prompt": prompt,
        "max_tokens": output,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r}: {(await reader.read(2000))!r}")
    answer = Stream(output)
    async for line in reader:
        if line.startswith(b"data: {") and b'"text":""' not in line.replace(b" ", b""):
            answer.chunks.append(time.perf_counter() - start)
    writer.close()
    if not answer.chunks:
        raise NoText(f"an answer of {output} tokens has no text")
    return answer


def decoding(port: int, prompts: Prompts, batch: int) -> float:
    """Tokens a second of `batch` streams, from when all have their first token to the last
    token."""
    streams = burst(port, [prompts.text(PROMPT) for _ in range(batch)], OUTPUT)
    begin = max(one.chunks[0] for one in streams)
    end = max(one.chunks[-1] for one in streams)
    # A chunk holds several tokens if the client was late; all streams have equally many tokens.
    done = sum(
        one.tokens * sum(at > begin for at in one.chunks) / len(one.chunks) for one in streams
    )
    return done / (end - begin)


def prefill(port: int, prompts: Prompts, length: int) -> float:
    """Prompt tokens a second of a single request, until its first token."""
    (stream,) = burst(port, [prompts.text(length)], 1)
    return length / stream.chunks[0]


def shared(port: int, prompts: Prompts, groups: int, members: int, prefix: int) -> float:
    """Output tokens a second from start to end; each group shares a prefix of `prefix` tokens."""
    prefixes = [prompts.text(prefix) for _ in range(groups)]
    texts = [one + prompts.text(16) for one in prefixes for _ in range(members)]
    streams = burst(port, texts, SHARED_OUTPUT)
    return SHARED_OUTPUT * len(texts) / max(one.chunks[-1] for one in streams)


Measure = Callable[[int, Prompts], float]


def measured(measure: Measure, port: int, prompts: Prompts, tries: int = 4) -> float:
    """The rate of a measure. Where an answer has no text, it is measured again with new prompts.

    A run with random weights had stopped at such an answer in its second turn. Raises NoText after
    the last try.
    """
    for _ in range(tries - 1):
        with suppress(NoText):
            return measure(port, prompts)
    return measure(port, prompts)


MEASURES: Mapping[str, Mapping[str, Measure]] = {
    "rates": {
        **{f"decode_{b}": partial(decoding, batch=b) for b in (1, 8, 32, 64)},
        **{f"prefill_{n}": partial(prefill, length=n) for n in (500, 2000)},
    },
    "shared": {
        "shared_16x2000": partial(shared, groups=1, members=16, prefix=2000),
        "shared_4x4x1000": partial(shared, groups=4, members=4, prefix=1000),
    },
}
