"""llama.cpp's own benchmark of a GGUF file."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LlamaBench:
    """llama-batched-bench on a file. Where it `shares` a prompt, all streams have one, which is
    computed once; it cannot do so for a model with a state."""

    program: Path
    model: Path
    threads: int
    shares: bool = True

    def decoding(self, streams: Sequence[int], start: int, tokens: int) -> dict[str, float]:
        """Tokens a second of streams that decode `tokens` tokens behind `start` others."""
        context = max(streams) * (start + tokens)
        flags = ("-pps",) if self.shares else ()
        lines = self._run([start], tokens, streams, context, *flags)
        return {f"decode {int(one['pl'])}": float(one["speed_tg"]) for one in lines}

    def prompting(self, prompts: Sequence[int]) -> dict[str, float]:
        """Tokens a second of prompts."""
        lines = self._run(prompts, 1, [1], max(prompts) + 1)
        return {f"prompt {int(one['pp'])}": float(one["speed_pp"]) for one in lines}

    def _run(
        self, prompts: Sequence[int], tokens: int, streams: Sequence[int], context: int, *flags: str
    ) -> list[dict[str, float]]:
        """The lines of a run."""
        options = {
            "-m": self.model,
            "-t": self.threads,
            "-c": context,
            "-npp": ",".join(map(str, prompts)),
            "-ntg": tokens,
            "-npl": ",".join(map(str, streams)),
            "--output-format": "jsonl",
        }
        words = [str(word) for pair in options.items() for word in pair]
        command = [str(self.program), *words, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"{self.program} failed: {done.stderr[-500:]}")
        return [json.loads(line) for line in lines]
