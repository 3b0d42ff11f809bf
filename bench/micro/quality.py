"""Measures what quantised weights cost in quality: ours and llama.cpp on the same files.

    make bench-quality

Both get SmolLM2 in files that llama-quantize makes of its float32 weights. Texts are the first
pages of these docs, in chunks of 512 tokens, each by itself. The second half of each chunk counts,
as in llama.cpp's own measurement. A divergence, in nats, is that of an engine's probabilities from
those of float32 weights: in the same engine with llama.cpp, and in torch with ours.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.harness import machine
from bench.harness.results import dated, stamp, write
from bench.harness.texts import ROOT
from weftline_engine.own.embedded.model.base import Model, StepInput
from weftline_engine.own.embedded.model.decoders import load_decoder
from weftline_engine.own.models import DEFAULT_MODEL, default_home, resolve
from weftline_kernels.work_list import SequenceRows, build

CHUNK, CHUNKS = 512, 8
KINDS = ("Q8_0", "Q5_K_M", "Q4_K_M", "Q4_0")
PAGES = ("engine.md", "architecture.md")


def logits_of(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """Logits in the second half of a chunk, but for its last token."""
    at, blocks = np.arange(CHUNK), list(range(CHUNK // 16))
    cache = model.new_cache(len(blocks), 16)
    wanted = np.arange(CHUNK // 2, CHUNK - 1)
    work = build([SequenceRows(blocks, 0, CHUNK, 0)], 16)
    found = model.forward(StepInput(tokens.numpy(), at, at, wanted, work), cache)
    return torch.from_numpy(found).float()


def divergence(model: Model, reference: Model, chunks: torch.Tensor) -> dict[str, float]:
    """How a model's probabilities differ from those of the reference."""
    divergences, same, surprise = [], [], []
    for tokens in chunks:
        wanted = logits_of(reference, tokens).log_softmax(1)
        found = logits_of(model, tokens).log_softmax(1)
        divergences.append((wanted.exp() * (wanted - found)).sum(1))
        same.append(wanted.argmax(1) == found.argmax(1))
        following = tokens[CHUNK // 2 + 1 :, None]
        surprise.append(-found.gather(1, following)[:, 0])
    each = torch.cat(divergences)
    return {
        "kl": float(each.mean()),
        "kl_99": float(each.quantile(0.99)),
        "same": float(torch.cat(same).float().mean()),
        "perplexity": float(torch.cat(surprise).mean().exp()),
    }


def tokens_in(base: Path) -> torch.Tensor:
    """The chunks of tokens in llama-perplexity's file of log probabilities."""
    with base.open("rb") as file:
        assert file.read(8) == b"_logits_"
        context, _, chunks = np.frombuffer(file.read(12), np.int32)
        data = np.frombuffer(file.read(4 * int(context) * int(chunks)), np.int32)
    return torch.from_numpy(data.reshape(int(chunks), int(context)).astype(np.int64))


_LINES = {
    "kl": r"Mean +KLD: +([\d.-]+)",
    "kl_99": r"99\.0% +KLD: +([\d.-]+)",
    "same": r"Same top p: +([\d.]+)",
    "perplexity": r"Mean PPL\(Q\) +: +([\d.]+)",
}


def divergence_in_llama(folder: Path, model: Path, base: Path) -> dict[str, float]:
    """The same of llama.cpp, as llama-perplexity says it."""
    said = run(
        folder / "llama-perplexity", "-m", model, "-c", CHUNK, "--kl-divergence-base", base,
        "--kl-divergence",
    )  # fmt: skip
    found = {}
    for name, line in _LINES.items():
        match = re.search(line, said)
        assert match is not None, f"llama-perplexity did not say {name}"
        found[name] = float(match[1])
    found["same"] /= 100
    return found


def run(*words: object, environment: dict[str, str] | None = None) -> str:
    """Run a program and return what it said. Raises RuntimeError if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {done.stdout[-500:]}")
    return done.stdout


def measure(folder: Path, directory: Path, kinds: Sequence[str], work: Path) -> dict[str, Any]:
    """Both engines on every kind of file."""
    whole, base, text = work / "f32.gguf", work / "base", work / "text"
    convert = folder / "source" / "convert_hf_to_gguf.py"
    run(
        sys.executable, convert, directory, "--outtype", "f32", "--outfile", whole,
        environment={"PYTHONPATH": str(folder / "lib")},
    )  # fmt: skip
    text.write_text("\n".join((ROOT / "docs" / page).read_text() for page in PAGES))
    run(
        folder / "llama-perplexity", "-m", whole, "-f", text, "-c", CHUNK, "--chunks", CHUNKS,
        "--kl-divergence-base", base,
    )  # fmt: skip
    chunks, builds = tokens_in(base), default_home() / "kernels"
    reference = load_decoder(directory, "float32", 16, builds)
    found: dict[str, Any] = {
        "bfloat16": {
            "weftline": divergence(
                load_decoder(directory, "bfloat16", 16, builds), reference, chunks
            )
        }
    }
    for kind in kinds:
        file = work / f"SmolLM2-{kind}.gguf"
        run(folder / "llama-quantize", whole, file, kind)
        own = load_decoder(resolve(str(file), home=work, direct=True), "bfloat16", 16, builds)
        found[kind] = {
            "megabytes": round(file.stat().st_size / 1e6, 1),
            "weftline": divergence(own, reference, chunks),
            "llama.cpp": divergence_in_llama(folder, file, base),
        }
    return found


def table(found: dict[str, Any]) -> str:
    """A row for each file and engine."""
    lines = [f"{'':10}{'':12}{'mean KL':>10}{'99 %':>10}{'same':>8}{'perplexity':>12}"]
    for kind, engines in found.items():
        for engine, row in engines.items():
            if engine != "megabytes":
                lines.append(
                    f"{kind:10}{engine:12}{row['kl']:10.5f}{row['kl_99']:10.4f}"
                    f"{row['same']:8.1%}{row['perplexity']:12.3f}"
                )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llama", type=Path, default=ROOT / ".venv-llama")
    parser.add_argument("--kind", action="append", help=f"default: {', '.join(KINDS)}")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    about = stamp(machine.describe())
    with tempfile.TemporaryDirectory() as work:
        directory = resolve(DEFAULT_MODEL)
        found = measure(options.llama, directory, options.kind or KINDS, Path(work))
    print(table(found))
    report = {**about, "tokens": CHUNKS * (CHUNK // 2 - 1), "files": found}
    print(write(dated(about["machine"]), "quality", report).relative_to(ROOT))


if __name__ == "__main__":
    main()
