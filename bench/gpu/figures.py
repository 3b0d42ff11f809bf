"""Replays figures 11, 14, 15, 16, 17 and 18 of the Parrot paper on one CUDA device.

    PYTHONPATH=client:server:engine:kernels:. python -m bench.gpu.figures --fig 15 [--dry-run]

Figures 11, 14, 17 and 18 are applications (see apps.py). Figures 15 and 16 decode after one long
common prefix. Figure 15 shows the mean latency of 64 chat-search requests at batch 8 to 64, each
with its own output length. Figure 16 fixes the output and shows milliseconds a token. Both decode
step by step on a LLaMA-7B of random weights and plan the tiles anew for every step; the prefill is
not included. There are three ways: "tree" shares the prefix in attention, "blocks_shared" only in
memory, and "off" copies it if that fits. A row counts only if blocks_shared reaches 80 % of its
roof.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything that imports a kernel

import torch

from bench.gpu import apps, attention, llama
from bench.gpu.results import RESULTS, write
from tests.kernels.hashes import kernel_hashes
from weftline_engine.own.embedded.model.config import LlamaConfig
from weftline_engine.own.embedded.model.torch_model import TorchModel
from weftline_kernels.work_list import SequenceRows

BUDGET_S = 400.0
DECODING = (15, 16)
LENGTHS = Path(__file__).with_name("parrot_figures.json")
# Figure 16: (batch, tokens of each output). There are fewer points than in the paper, to save time.
POINTS_16 = ((32, 200), (32, 800), (64, 100), (64, 480))
BATCHES_15 = (8, 16, 32, 64)
COUNTED_FROM = 0.8


def replay(
    model: TorchModel,
    config: LlamaConfig,
    prefix: int,
    lengths: list[tuple[int, int]],
    mode: str,
    roof: float,
    deadline: float,
) -> dict[str, object] | str:
    """Decode all (prompt, output) together. Return the latencies, and the share of the roof
    reached.
    """
    copied, shared = llama.MODES[mode]
    tables = llama.tables(prefix, [sum(one) for one in lengths], copied=copied)
    if not llama.fits(config, 1 + tables[-1][-1], model.device):
        return "does not fit"
    whole = [
        SequenceRows(table, i, 1, sum(one) - 1)
        for i, (table, one) in enumerate(zip(tables, lengths, strict=True))
    ]
    decode = llama.Decode(model, whole, shared=shared)
    decode.load(whole)
    decode.run()  # compiles and captures
    start, must, ends = time.perf_counter(), 0, [0.0] * len(lengths)
    for step in range(max(output for _, output in lengths)):
        if time.monotonic() > deadline:
            return "left out for time"
        alive = [i for i, (_, output) in enumerate(lengths) if step < output]
        decode.load(
            [SequenceRows(tables[i], row, 1, lengths[i][0] + step) for row, i in enumerate(alive)]
        )
        decode.run()
        tokens = sum(lengths[i][0] + step + 1 for i in alive)
        read = tokens - (len(alive) - 1) * prefix if shared else tokens
        must += llama.weight_bytes(config) + read * llama.token_bytes(config)
        finished = [i for i in alive if lengths[i][1] == step + 1]
        if finished:
            llama.synchronize(model.device)
            for i in finished:
                ends[i] = time.perf_counter() - start
    return {
        "mean_latency_s": sum(ends) / len(ends),
        "ms_a_token": 1e3 * sum(e / n for e, (_, n) in zip(ends, lengths, strict=True)) / len(ends),
        "part_of_roof": must / roof / max(ends),
    }


def points(figure: int, data: dict[str, Any], dry: bool) -> list[tuple[int, list[tuple[int, int]]]]:
    """The (batch, lengths) of each point of the figure."""
    pairs = [(int(prompt), int(output)) for prompt, output in data["prompt_and_output_tokens"]]
    if dry:
        return [(2, [(37, 2), (40, 1)])]
    if figure == 15:
        return [(batch, pairs[:batch]) for batch in BATCHES_15]
    return [(batch, [(p, output) for p, _ in pairs[:batch]]) for batch, output in POINTS_16]


def main() -> None:
    """Replay one figure, and write its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    figures = sorted((*apps.FIGURES, *DECODING))
    parser.add_argument("--fig", type=int, choices=figures, required=True)
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="of measuring, at most")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="folder of the results; a dry run needs it to write them"
    )
    options = parser.parse_args()
    dry, figure = options.dry_run, options.fig
    if not dry and not torch.cuda.is_available():
        sys.exit("no CUDA device here: run this on a machine with one, or with --dry-run")
    device = torch.device("cpu" if dry else "cuda")
    deadline = time.monotonic() + options.seconds
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "CPU, interpreted" if dry else torch.cuda.get_device_name(),
        "figure": figure,
        "kernels": kernel_hashes(),
    }
    folder = options.folder or (None if dry else RESULTS)
    rows = report["rows"] = []
    run = decoding if figure in DECODING else apps.rows
    for row in run(figure, device, deadline, dry):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if folder is not None:
            write(report, report["date"], report["device"], name_of(figure), folder)


def name_of(figure: int) -> str:
    """The name of the file with a figure's numbers."""
    return f"gpu-figure-{figure}.json"


def decoding(
    figure: int, device: torch.device, deadline: float, dry: bool
) -> Iterator[dict[str, Any]]:
    """The rows of figure 15 or 16."""
    data = json.loads(LENGTHS.read_text())
    prefix = 32 if dry else int(data["shared_prefix_tokens"])
    config = llama.TINY if dry else llama.LLAMA_7B
    roof = attention.bandwidth(device)
    model = llama.load(config, device)
    for batch, lengths in points(figure, data, dry):
        row: dict[str, object] = {"batch": batch, "most_output": max(o for _, o in lengths)}
        for mode in llama.MODES:
            row[mode] = replay(model, config, prefix, lengths, mode, roof, deadline)
            llama.release(device)
        base = row["blocks_shared"]
        row["counts"] = isinstance(base, dict) and base["part_of_roof"] >= COUNTED_FROM
        yield row


if __name__ == "__main__":
    main()
