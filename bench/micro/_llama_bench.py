"""llama.cpp's own benchmark of a GGUF file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path


def decoding(
    program: Path, model: Path, threads: int, streams: Sequence[int], start: int, tokens: int
) -> dict[str, float]:
    """Tokens a second of streams that decode `tokens` tokens behind `start` equal others."""
    context = max(streams) * (start + tokens)
    lines = _run(program, model, threads, [start], tokens, streams, context, "-pps")
    return {f"decode {int(one['pl'])}": float(one["speed_tg"]) for one in lines}


def prompting(program: Path, model: Path, threads: int, prompts: Sequence[int]) -> dict[str, float]:
    """Tokens a second of prompts."""
    lines = _run(program, model, threads, prompts, 1, [1], max(prompts) + 1)
    return {f"prompt {int(one['pp'])}": float(one["speed_pp"]) for one in lines}


def _run(
    program: Path,
    model: Path,
    threads: int,
    prompts: Sequence[int],
    tokens: int,
    streams: Sequence[int],
    context: int,
    *flags: str,
) -> list[dict[str, float]]:
    """The lines of a run of llama-batched-bench."""
    options = {
        "-m": model,
        "-t": threads,
        "-c": context,
        "-npp": ",".join(map(str, prompts)),
        "-ntg": tokens,
        "-npl": ",".join(map(str, streams)),
        "--output-format": "jsonl",
    }
    words = [str(word) for pair in options.items() for word in pair]
    done = subprocess.run([program, *words, *flags], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{program} failed: {done.stderr[-500:]}")
    return [json.loads(line) for line in lines]
