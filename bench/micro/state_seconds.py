"""Seconds of the programs of `weftline bench states`, at the sizes of small models that people run.

    weftline bench state_seconds [--families "LFM2"] [--programs "refine,map"] [--repeat 3]

Each run has a fresh server: llama-server alone with its defaults, or weftline in front of one. Both
have two threads and four slots of 8,192 tokens. One short call comes before the clock starts. The
two take turns, and a ratio compares the runs of a turn. Weights are random, in Q8_0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import (
    Gemma3TextConfig,
    Lfm2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
)

from bench.harness import machine
from bench.harness.metrics import spread
from bench.harness.results import stamp, write
from bench.micro._state_programs import PROGRAMS, Program
from bench.micro.states import (
    llama_server,
    plain_model,
    settings,
    template,
    tokenizer_of,
    weftline_server,
)
from langchain_weftline import ChatWeftline, accelerate
from tests.llamacpp.random_ggufs import SIZES, gguf_of
from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve

THREADS = 2


def smollm() -> PretrainedConfig:
    """SmolLM2-360M."""
    sizes = {"hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 15, "num_key_value_heads": 5}
    return LlamaConfig(**(SIZES | sizes | heads), tie_word_embeddings=True)


def qwen() -> PretrainedConfig:
    """Qwen3.5-0.8B, with a smaller vocabulary."""
    sizes = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
    linear = {"linear_num_key_heads": 16, "linear_num_value_heads": 16}
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 6
    more = {"layer_types": kinds, "full_attention_interval": 4, "tie_word_embeddings": True}
    return Qwen3_5TextConfig(**(SIZES | sizes | heads | linear | more))


def gemma() -> PretrainedConfig:
    """Gemma 3 270M, with a smaller vocabulary."""
    sizes = {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18}
    heads = {"num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512}
    return Gemma3TextConfig(**(SIZES | sizes | heads))


def lfm() -> PretrainedConfig:
    """LFM2-350M, with a smaller vocabulary."""
    attends = {2, 5, 8, 10, 12, 14}
    kinds = ["full_attention" if layer in attends else "conv" for layer in range(16)]
    sizes = {"hidden_size": 1024, "intermediate_size": 6656, "num_hidden_layers": 16}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8}
    return Lfm2Config(**(SIZES | sizes | heads), layer_types=kinds)


MODELS: Mapping[str, Callable[[], PretrainedConfig]] = {
    "dense": smollm,
    "Qwen3.5": qwen,
    "Gemma 3": gemma,
    "LFM2": lfm,
}


def made(family: str, folder: Path, base: Path) -> Path:
    """The GGUF file of a family, with the tokenizer of `base`."""
    file = folder / family.replace(" ", "-") / "model.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        gguf_of(MODELS[family](), base, file.parent, template(), "q8_0")
    return file


def seconds(program: Program, llm: Any, change: Callable[[Any], Any]) -> float:
    """Of a program behind one short call."""
    llm.invoke("hello")
    began = time.perf_counter()
    program(llm, change)
    return time.perf_counter() - began


def pair(
    program: Program, file: Path, chosen: Mapping[str, Any], *, ours_first: bool
) -> tuple[float, float]:
    """The seconds of a program with weftline, and with llama-server alone."""

    def ours() -> float:
        with weftline_server(file, threads=THREADS) as url:
            return seconds(program, ChatWeftline(base_url=url, **chosen), accelerate)

    def plain() -> float:
        with llama_server(file, file.with_suffix(".log"), THREADS) as url:
            return seconds(program, plain_model(url, chosen), lambda one: one)

    if ours_first:
        return ours(), plain()
    theirs = plain()
    return ours(), theirs


def row(family: str, name: str, turns: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Medians and quartiles of a program's turns."""
    return {
        "family": family,
        "program": name,
        "weftline": spread([ours for ours, _ in turns]).to_json(),
        "plain": spread([plain for _, plain in turns]).to_json(),
        "plain over weftline": spread([plain / ours for ours, plain in turns]).to_json(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        prog="weftline bench state_seconds", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--families", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--programs", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--repeat", type=int, default=3)
    models = Path("out/state_seconds")
    parser.add_argument("--models", type=Path, default=models, help="where they are made")
    parser.add_argument("--folder", type=Path, help="write the rows to this folder")
    args = parser.parse_args(argv)
    base = resolve(DEFAULT_MODEL, progress=for_stream())
    chosen = settings(tokenizer_of(base))
    wanted = tuple(args.programs.split(","))
    found: list[dict[str, Any]] = []
    for family in args.families.split(","):
        file = made(family, args.models, base)
        for name, program in PROGRAMS.items():
            if not name.startswith(wanted):
                continue
            turns = [
                pair(program, file, chosen, ours_first=at % 2 == 0) for at in range(args.repeat)
            ]
            found.append(row(family, name, turns))
            print(found[-1], flush=True)
    if args.folder is not None:
        write(args.folder, "state_seconds", {**stamp(machine.describe()), "rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
