"""Checks the kernels on a CUDA device, and measures attention and the decode step.

    PYTHONPATH=client:server:engine:kernels:. python -m bench.gpu [--dry-run]

It needs only torch and triton. It prints JSON and writes it to bench/results/DATE-MACHINE/gpu.json.
`--dry-run` runs every part on the CPU in Triton's interpreter, at shapes whose times mean nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything that imports a kernel

import torch
import triton

from bench.gpu import attention, checks, llama
from bench.gpu.results import kernel_hashes, write
from weftline_kernels.work_list import Rows

BUDGET_S = 420.0  # of eight minutes; the rest is for tests and compilation


def attention_rows(device: torch.device, deadline: float, dry: bool) -> dict[str, object]:
    """The attention of one layer. The most important rows come first, as the time may run out."""
    bandwidth = attention.copy_bandwidth(device)
    shapes: tuple[attention.Shape, ...] = attention.SHAPES
    cases = [(p, b) for p in (6000, 2048) for b in (16, 32, 8, 64)]
    suffix = 500
    if dry:
        shapes, cases, suffix = (attention.Shape("tiny", 4, 2, 16),), [(40, 3)], 9
    rows, left_out = [], 0
    for shape in shapes:
        for prefix, batch in cases:
            if time.monotonic() > deadline:
                left_out += 1
                continue
            row = attention.measure(shape, batch, prefix, suffix, bandwidth, device)
            print(json.dumps(row), file=sys.stderr)
            rows.append(row)
    return {"copy_gb_s": bandwidth / 1e9, "rows": rows, "rows_left_out_for_time": left_out}


def step_rows(device: torch.device, bandwidth: float, dry: bool) -> dict[str, object]:
    """The decode step of a LLaMA-7B of random weights, at batch 32 after 6,000 common tokens."""
    config, batch, prefix, suffix, repeat = llama.LLAMA_7B, 32, 6000, 500, 15
    if dry:
        config = llama.TINY
        batch, prefix, suffix, repeat = 3, 32, 6, 1
    model = llama.load(config, device)
    found: dict[str, object] = {
        "decoder": "the engine's, without scheduler and sampling; engine_ms with them",
        "batch": batch,
        "prefix": prefix,
        "suffix": suffix,
    }
    for name, (copied, shared) in llama.MODES.items():
        tables = llama.tables(prefix, [prefix + suffix] * batch, copied=copied)
        if not llama.fits(config, 1 + tables[-1][-1], device):
            found[f"{name}_ms"] = "does not fit"
            continue
        parts = [Rows(table, i, 1, prefix + suffix - 1) for i, table in enumerate(tables)]
        decode = llama.Decode(model, parts, shared=shared)
        found[f"{name}_ms"] = llama.step_seconds(decode, parts, repeat) * 1e3
        tokens = (prefix if shared else batch * prefix) + batch * suffix
        must = llama.weight_bytes(config) + tokens * llama.token_bytes(config)
        found[f"{name}_roof_ms"] = must / bandwidth * 1e3
        del decode
        if device.type == "cuda":
            torch.cuda.empty_cache()
    seconds, prompt_tokens = llama.engine_seconds(model, batch, prefix, suffix, repeat + 1)
    found |= {"engine_ms": seconds * 1e3, "engine_prompt_tokens_per_s": prompt_tokens}
    return found


def main() -> None:
    """Check and measure every kernel, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    dry = parser.parse_args().dry_run
    if not dry and not torch.cuda.is_available():
        sys.exit("no CUDA device here: run this on a machine with one, or with --dry-run")
    device = torch.device("cpu" if dry else "cuda")
    start = time.monotonic()
    dtypes = (torch.float32,) if dry else tuple(checks.TOLERANCE)
    if dry:
        checks.CHECKS = {
            name: check for name, check in checks.CHECKS.items() if "attention" not in name
        }
    report: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": "CPU, interpreted" if dry else torch.cuda.get_device_name(),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "kernels": kernel_hashes(),
    }
    checked = list(checks.run(device, dtypes))
    measured = attention_rows(device, start + 0.6 * BUDGET_S, dry)
    bandwidth = float(str(measured["copy_gb_s"])) * 1e9
    report |= {"checks": checked, "attention": measured}
    report["decode_step"] = step_rows(device, bandwidth, dry)
    report["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(report, indent=2))
    if not dry:
        date, name = str(report["date"]), str(report["device"])
        print(f"written to {write(report, date, name, 'gpu.json')}", file=sys.stderr)
    if not all(check["ok"] for check in checked):
        sys.exit("a kernel differs from its reference")


if __name__ == "__main__":
    main()
