"""Prompt tokens that llama-server computes: weftline in front, llama-server alone, and the ideal.

    weftline bench states [--families "dense,LFM2"] [--programs "refine over 6"]

Ten LangChain programs run on five families of models with random weights, which are made here. The
servers have four slots of 8,192 tokens. Each program finds a fresh server. llama-server counts the
tokens, so load on the machine changes nothing but the order of calls that come at once. The ideal
computes every distinct beginning of the prompts once. Answers are the same digits for all.

The program fails if weftline reports other cached tokens than llama-server reused, or if its
prompts are not those of llama-server alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import convert_to_openai_messages
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from transformers import AutoTokenizer

from bench.harness import machine
from bench.harness.results import stamp, write
from bench.harness.servers import last_words, launched, stop
from bench.micro._state_programs import PROGRAMS, Program
from langchain_weftline import ChatWeftline, accelerate
from tests.llamacpp.random_ggufs import FAMILIES, LLAMA, gguf_of
from tests.ports import free_port
from weftline.local import local_server
from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve

SLOTS, CONTEXT = 4, 8192
TEMPLATE = "Qwen-Qwen2.5-7B-Instruct"  # it has tools, and its marks are tokens of SmolLM2
MAX_TOKENS = 8
OWN_TOKENS = 64
START_S = 60.0
# The most that weftline may compute, over llama-server alone and over the ideal.
OVER_PLAIN, OVER_IDEAL = 1.02, 1.15

NAMES = ("family", "program", "weftline", "plain", "ideal", "prompts", "told_cached")
RATIOS = ("over plain", "over ideal", "hit share")

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """Prompt tokens: how many llama-server computed and how many it had, and, behind weftline, what
    the answers' usage says."""

    computed: int
    cached: int
    told_computed: int = 0
    told_cached: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """The computed tokens of a program on a family."""

    family: str
    program: str
    weftline: int
    plain: int
    ideal: int
    prompts: int  # tokens of all prompts
    told_cached: int

    @property
    def within(self) -> bool:
        """Whether weftline computed no more than it should."""
        return self.weftline <= min(OVER_PLAIN * self.plain, OVER_IDEAL * self.ideal)

    @property
    def hit_share(self) -> float:
        """The share of cached tokens among those that an earlier prompt had."""
        return self.told_cached / (self.prompts - self.ideal)

    def row(self) -> dict[str, Any]:
        over_plain, over_ideal = self.weftline / self.plain, self.weftline / self.ideal
        ratios = (over_plain, over_ideal, self.hit_share)
        named = zip(RATIOS, (round(one, 3) for one in ratios), strict=True)
        return {name: getattr(self, name) for name in NAMES} | dict(named)


def template() -> str:
    """The chat template of all models."""
    return (LLAMA / f"source/templates/{TEMPLATE}.jinja").read_text()


def tokenizer_of(model: Path) -> Any:
    """The tokenizer of a directory, which renders chats with that template."""
    found = AutoTokenizer.from_pretrained(model)
    found.chat_template = template()
    return found


def ideal(prompts: Sequence[Tokens]) -> int:
    """The tokens of every distinct beginning, once."""
    return sum(len(b) - common(a, b) for a, b in pairwise([(), *sorted(prompts)]))


def common(a: Tokens, b: Tokens) -> int:
    """The length of the beginning that both have."""
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


class Prompts(BaseCallbackHandler):
    """Notes the prompts of a chat model's calls, as tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.found: list[Tokens] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **more: Any) -> None:
        tools = more["invocation_params"].get("tools")
        for one in messages:
            said = convert_to_openai_messages(one)
            for message in said:
                for call in message.get("tool_calls", ()):
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            ids = self._tokenizer.apply_chat_template(
                said, tools=tools, add_generation_prompt=True, return_dict=False
            )
            self.found.append(tuple(ids))


def counted(url: str) -> Counts:
    """What the servers' metrics say now."""
    found = {"computed": 0.0, "cached": 0.0, "told_computed": 0.0, "told_cached": 0.0}
    names = {
        "llamacpp:prompt_tokens_total": "computed",
        "llamacpp:prompt_tokens_cached_total": "cached",
        "weftline_prompt_computed_tokens_total": "told_computed",
        "weftline_prompt_cached_tokens_total": "told_cached",
    }
    with urlopen(f"{url}/metrics", timeout=START_S) as answer:
        for line in answer.read().decode().splitlines():
            if name := names.get(line.partition("{")[0].partition(" ")[0]):
                found[name] += float(line.rpartition(" ")[2])
    return Counts(**{name: int(value) for name, value in found.items()})


@contextmanager
def launched_server(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    url: str,
    ask: Callable[[str], object],
    within_s: float,
) -> Iterator[str]:
    """A server that answers `ask`. Raises RuntimeError if it does not in so many seconds."""
    process = launched(command, environment, log)
    until = time.monotonic() + within_s
    try:
        while True:
            try:
                ask(url)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no server started: {last_words(log)}") from None
                time.sleep(0.05)
        yield url
    finally:
        stop(process)


def llama_server(file: Path, log: Path, threads: int = 1) -> AbstractContextManager[str]:
    """llama-server alone, with its defaults."""
    port = free_port()
    given = {"--model": file, "--alias": "default", "--port": port, "--threads": threads}
    given |= {"--parallel": SLOTS, "--ctx-size": SLOTS * CONTEXT}
    options = [str(word) for option in given.items() for word in option]
    command = [str(LLAMA / "llama-server"), *options, "--metrics"]
    return launched_server(command, os.environ, log, f"http://127.0.0.1:{port}", counted, START_S)


@contextmanager
def weftline_server(file: Path, arguments: str = "", threads: int = 1) -> Iterator[str]:
    """weftline with its llamacpp engine and its defaults, and further arguments of llama-server."""
    options = ("--max-running", str(SLOTS), "--context-limit", str(CONTEXT))
    server = (
        "--llama-server",
        str(LLAMA / "llama-server"),
        f"--llama-arguments=--threads {threads} {arguments}",
    )
    with local_server(str(file), "--engine", "llamacpp", *server, *options) as url:
        yield url


def settings(tokenizer: Any) -> dict[str, Any]:
    """Sevens for an answer: however they are read again, they are the same tokens."""
    [seven] = tokenizer.encode("7", add_special_tokens=False)
    return {"temperature": 0, "max_tokens": MAX_TOKENS, "logit_bias": {str(seven): 100}}


def plain_model(url: str, chosen: Mapping[str, Any], **more: Any) -> ChatOpenAI:
    """The model of a server without weftline."""
    # The openai client requires a key, and a server on loopback does not read it.
    return ChatOpenAI(
        base_url=f"{url}/v1", api_key=SecretStr("none"), model="default", **chosen, **more
    )


def run(program: Program, llm: Any, change: Callable[[Any], Any], url: str) -> Counts:
    """The tokens that a program adds to the servers' metrics."""
    before = counted(url)
    program(llm, change)
    after = counted(url)
    parts = {name: getattr(after, name) - getattr(before, name) for name in Counts.__slots__}
    return Counts(**parts)


def cell(family: str, name: str, file: Path, tokenizer: Any, arguments: str = "") -> Cell:
    """Run a program on both."""
    program, chosen, log = PROGRAMS[name], settings(tokenizer), file.with_suffix(".log")
    seen = Prompts(tokenizer)
    with llama_server(file, log) as url:
        alone = plain_model(url, chosen, callbacks=[seen])
        plain = run(program, alone, lambda one: one, url)
    with weftline_server(file, arguments) as url:
        ours = run(program, ChatWeftline(base_url=url, **chosen), accelerate, url)
    return checked(family, name, plain, ours, seen.found)


def checked(family: str, name: str, plain: Counts, ours: Counts, prompts: Sequence[Tokens]) -> Cell:
    """The cell, if all counts agree. Raises RuntimeError."""
    total = sum(map(len, prompts))
    found = {
        "llama-server": plain.computed + plain.cached,
        "weftline": ours.told_computed + ours.told_cached,
    }
    for server, tokens in found.items():
        if tokens != total:
            raise RuntimeError(f"{family}, {name}: {server} counts {tokens} tokens of {total}")
    # weftline's own requests compute tokens that belong to no answer: one for each written slot.
    if not 0 <= ours.computed - ours.told_computed <= OWN_TOKENS:
        raise RuntimeError(f"{family}, {name}: weftline reports other tokens than it had: {ours}")
    least = ideal(prompts)
    return Cell(family, name, ours.computed, plain.computed, least, total, ours.told_cached)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows. The exit code is 1 if a cell is beyond what it should be."""
    parser = argparse.ArgumentParser(
        prog="weftline bench states", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas")
    parser.add_argument("--programs", help="beginnings of names, separated by commas")
    parser.add_argument(
        "--models", type=Path, default=Path("out/states"), help="where they are made"
    )
    parser.add_argument("--folder", type=Path, help="write the rows to this folder")
    args = parser.parse_args(argv)
    base = resolve(DEFAULT_MODEL, progress=for_stream())
    tokenizer = tokenizer_of(base)
    cells: list[Cell] = []
    print(f"| {' | '.join((*NAMES, *RATIOS))} |\n{'|---' * len((*NAMES, *RATIOS))}|")
    for family in args.families.split(","):
        file = args.models / family.replace(" ", "-") / "model.gguf"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            gguf_of(FAMILIES[family](), base, file.parent, template())
        for name in PROGRAMS:
            if not args.programs or name.startswith(tuple(args.programs.split(","))):
                cells.append(cell(family, name, file, tokenizer))
                print(f"| {' | '.join(map(str, cells[-1].row().values()))} |", flush=True)
    if args.folder is not None:
        rows = [one.row() for one in cells]
        write(args.folder, "states", {**stamp(machine.describe()), "rows": rows})
    return 0 if all(one.within for one in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
