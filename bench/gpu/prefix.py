"""Times a decode step of a LLaMA-7B of random weights behind a long common prefix, by the way that
the prefix is shared (one step of Parrot's Figures 15 and 16)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.gpu import attention, llama
from weftline_kernels.work_list import SequenceRows

BATCHES = (32, 8, 64)
PREFIX, SUFFIX, REPEATS = 6000, 500, 15


def rows(device: torch.device, dry: bool) -> Iterator[dict[str, object]]:
    """A row for each batch. The engine's step has scheduler and sampling, and its prompts."""
    roof = attention.bandwidth(device)
    yield {"roof_gb_s": roof / 1e9}
    config, batches = (llama.TINY, (3,)) if dry else (llama.LLAMA_7B, BATCHES)
    prefix, suffix, repeats = (32, 6, 1) if dry else (PREFIX, SUFFIX, REPEATS)
    model = llama.load(config, device)
    for batch in batches:
        row: dict[str, object] = {"batch": batch, "prefix": prefix, "suffix": suffix}
        for name, (copied, shared) in llama.MODES.items():
            tables = llama.tables(prefix, [prefix + suffix] * batch, copied=copied)
            if not llama.fits(config, 1 + tables[-1][-1], device):
                row[f"{name}_ms"] = "does not fit"
                continue
            parts = [
                SequenceRows(table, i, 1, prefix + suffix - 1) for i, table in enumerate(tables)
            ]
            decode = llama.Decode(model, parts, shared=shared)
            row[f"{name}_ms"] = llama.step_seconds(decode, parts, repeats) * 1e3
            tokens = (prefix if shared else batch * prefix) + batch * suffix
            must = llama.weight_bytes(config) + tokens * llama.token_bytes(config)
            row[f"{name}_floor_ms"] = must / roof * 1e3
            del decode
            llama.release(device)
        seconds, prompt_tokens = llama.engine_seconds(model, batch, prefix, suffix, repeats + 1)
        yield row | {"engine_ms": seconds * 1e3, "engine_prompt_tokens_per_s": prompt_tokens}
        llama.release(device)
