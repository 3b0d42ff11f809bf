"""Compiles every Triton kernel for GPUs that are not there, and summarises what they take.

    PYTHONPATH=client:server:engine:kernels:. python -m tests.kernels.compilation [--check]

The summary is tests/kernels/compiled.json: registers, spilled bytes, shared memory, and the
instructions that matter, for each kernel, shape, dtype and compute capability, by version of
Triton. It names the hash of the kernels and of what is compiled. With the same hash and version
nothing is compiled again. `--check` compiles nothing at all, and fails if the summary is older than
the kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.hashes import in_rows, kernel_hashes
from weftline_kernels import (
    attention_triton,
    kv_store,
    rms_norm,
    rope_store,
    silu_mul,
)
from weftline_kernels.jit import power_of_two
from weftline_kernels.tiles import tile_rows

SUMMARY = Path(__file__).with_name("compiled.json")
TOOLS = Path(triton.backends.nvidia.__file__).parent / "bin"
# Bytes of shared memory that a program may take, by compute capability.
SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
# Query heads, KV heads and head size. Others with the same head size and as many rows of a tile
# compile to the same code but for a constant.
HEADS = {
    "SmolLM2-135M": (9, 3, 64),
    "OPT-2.7B": (32, 32, 80),
    "Phi-3-mini": (32, 32, 96),
    "Llama-3-8B": (32, 8, 128),
    "64 heads on one": (64, 1, 128),
    "Gemma-3-1B": (4, 1, 256),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel with the types of its arguments, its constants and its launch."""

    name: str
    module: str
    kernel: str
    types: tuple[str, ...]
    constants: dict[str, Any]
    sm: int
    options: dict[str, int] = field(default_factory=dict)
    may_spill: bool = False
    has_products: bool = False


def jobs() -> Iterator[Job]:
    """All that the launchers can choose, for the shapes of HEADS."""
    for sm in SHARED:
        for dtype in POINTERS:
            for shape, (heads, kv_heads, width) in HEADS.items():
                name = f"{shape} {str(dtype)[6:]} sm_{sm}"
                yield from _attention(name, heads, kv_heads, width, dtype, sm)
            yield from _small(f"{str(dtype)[6:]} sm_{sm}", dtype, sm)


def _attention(
    name: str, heads: int, kv_heads: int, width: int, dtype: torch.dtype, sm: int
) -> Iterator[Job]:
    group, pointer = heads // kv_heads, POINTERS[dtype]
    narrow, wide_rows = tile_rows(group, has_wide=attention_triton.has_wide(dtype, width))
    for wide in (False, True) if narrow < wide_rows else (False,):
        launch = attention_triton.launch_of(dtype, narrow, width, sm, wide=wide)
        constants = {
            "KV_HEADS": kv_heads,
            "GROUP": group,
            "WIDTH": width,
            "KV_BLOCK": 16,
            "WIDE": wide_rows if wide else 0,
            "NARROW": narrow,
            "BLOCK_L": launch.tokens,
            "BLOCK_H": max(16, power_of_two(width)),
            "UPCAST": False,
        }
        types = (pointer,) * 4 + ("*fp32",) * 2 + ("*i32",) * 4 + ("fp32", "i32", "i32", "i64")
        yield Job(
            f"attend {'wide' if wide else 'narrow'}, {name}",
            "attention_triton",
            "_attend",
            types,
            constants,
            sm,
            {"num_warps": launch.warps, "num_stages": launch.stages},
            may_spill=width > 128 or dtype.itemsize > 2,
            has_products=dtype.itemsize == 2,
        )


def _small(name: str, dtype: torch.dtype, sm: int) -> Iterator[Job]:
    pointer = POINTERS[dtype]
    yield Job(
        f"merge, {name}", "attention_triton", "_merge",
        ("*fp32", "*fp32", pointer, "*i32", "i32", "i32"), {"PARTS": 16, "BLOCK_H": 128}, sm,
    )  # fmt: skip
    for channels in (576, 4096, 8192):
        block = power_of_two(channels)
        yield Job(
            f"rms_norm of {channels}, {name}", "rms_norm", "_rms_norm",
            (*(pointer,) * 5, "i32", "i32", "fp32"), {"BLOCK": block, "ADDED": True}, sm,
            {"num_warps": min(8, max(1, block // 512))},
        )  # fmt: skip
    yield Job(
        f"rope_store, {name}", "rope_store", "_rope_store",
        (*(pointer,) * 8, "*i64", "fp32", "i32", "i64", *("i32",) * 4),
        {"NORMED": True, "BLOCK_X": rope_store.heads_at_a_time(dtype), "BLOCK_H": 128}, sm,
    )  # fmt: skip
    yield Job(
        f"silu_mul, {name}", "silu_mul", "_silu_mul", (pointer, pointer, "i32", "i32"),
        {"BLOCK": silu_mul.BLOCK}, sm,
    )  # fmt: skip
    yield Job(
        f"kv_store, {name}", "kv_store", "_kv_store",
        (pointer, pointer, "*i64", "i64", "i32", "i32", "i32", "i32"),
        {"BLOCK_K": 8, "BLOCK_H": 128}, sm,
    )  # fmt: skip


MODULES = {
    "attention_triton": attention_triton,
    "kv_store": kv_store,
    "rms_norm": rms_norm,
    "rope_store": rope_store,
    "silu_mul": silu_mul,
}


def compiled(job: Job) -> dict[str, Any]:
    """What a kernel takes. Pointers and strides are multiples of 16, as the launchers' are."""
    kernel = getattr(MODULES[job.module], job.kernel)
    signature, attributes, types = {}, {}, iter(job.types)
    for i, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in job.constants else next(types)
        is_stride = name in ("q_row", "q_head", "kv_head", "row_stride", "pool_head")
        if signature[name].startswith("*") or is_stride:
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=job.constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", job.sm, 32), options=job.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "--dump-resource-usage", file.name],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    ptx = made.asm["ptx"]
    products = [one for one in ("wgmma", "tcgen05.mma", "mma.sync") if one in ptx]
    wide_loads = len(re.findall(r"cp\.async\.c[ag].*0x10|ld\.global\.\S*v4\.b32", ptx))
    return {
        "registers": int(found[1]),
        "spilled": int(found[2]),
        "shared": made.metadata.shared,
        **({"products": products[0] if products else "none"} if job.has_products else {}),
        **({"loads_of_16_bytes": wide_loads} if job.kernel == "_attend" else {}),
    }


def faults(job: Job, row: dict[str, Any], *, newest: bool) -> list[str]:
    """What is wrong with a compiled kernel. An older Triton may spill."""
    found = []
    if "error" in row:
        return [f"{job.name}: {row['error']}"]
    if row["shared"] > SHARED[job.sm]:
        found.append(f"{job.name}: {row['shared']} bytes of shared memory do not fit")
    if newest and row["spilled"] and not job.may_spill:
        found.append(f"{job.name}: spills {row['spilled']} bytes a thread")
    if row.get("products") == "none":
        found.append(f"{job.name}: its products are not on tensor cores")
    if row.get("loads_of_16_bytes") == 0 and job.has_products:
        found.append(f"{job.name}: keys and values are not loaded 16 bytes at a time")
    return found


def sources() -> str:
    """The hash of the kernels, and of what is compiled."""
    text = json.dumps(kernel_hashes(), sort_keys=True) + repr(list(jobs()))
    return hashlib.sha256(text.encode()).hexdigest()


def current() -> dict[str, Any]:
    """The summary, or an empty one if it is of other sources."""
    found: dict[str, Any] = json.loads(SUMMARY.read_text()) if SUMMARY.is_file() else {}
    return found if found.get("sources") == sources() else {"sources": sources(), "triton": {}}


def all_faults(summary: dict[str, Any]) -> list[str]:
    """What is wrong in a summary, and what it lacks."""
    versions = summary["triton"]
    if not versions:
        return [f"{SUMMARY.name} is older than the kernels: run make gpu-compile, and commit it"]
    newest = max(versions, key=lambda one: [int(part) for part in one.split(".")])
    found = []
    for version, rows in versions.items():
        for job in jobs():
            row = rows.get(job.name, {"error": "not compiled"})
            found += [f"Triton {version}: {x}" for x in faults(job, row, newest=version == newest)]
    return found


def _compiled_or_error(job: Job) -> dict[str, Any]:
    try:
        return compiled(job)
    except Exception as error:  # the compiler's passes raise many kinds
        return {"error": f"{type(error).__name__}: {str(error)[-200:]}"}


def main() -> None:
    """Compile what the summary lacks for this Triton, write it, and name what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    summary, version = current(), triton.__version__
    if not parser.parse_args().check and version not in summary["triton"]:
        todo = list(jobs())
        with ProcessPoolExecutor(2) as pool:
            found = pool.map(_compiled_or_error, todo)
            rows = {job.name: row for job, row in zip(todo, found, strict=True)}
        summary["triton"][version] = rows
        SUMMARY.write_text(in_rows(summary, sort_keys=True))
    wrong = all_faults(summary)
    for one in wrong:
        print(one)
    if wrong:
        sys.exit(f"{len(wrong)} faults")


if __name__ == "__main__":
    main()
