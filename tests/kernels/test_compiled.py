"""Compiles every Triton kernel for an H200, without a GPU. The interpreter cannot check this.

A process of its own compiles them for compute capability 9.0, because this one only interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

_COMPILE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from weftline_kernels import attention_triton, kv_store, rms_norm, rope_store, silu_mul

found = {}
def compile(kernel, types, constants, name="", **options):
    names = kernel.arg_names
    signature = dict(zip(names, types.split())) | {name: "constexpr" for name in constants}
    aligned = {(i,): [["tt.divisibility", 16]]
               for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    seen = {"shared": made.metadata.shared, "wgmma": "wgmma" in made.asm["ptx"]}
    found[name or kernel.__name__] = seen

half = "*bf16 "
compile(attention_triton._attend, half * 4 + "*fp32 " * 2 + "*i32 " * 4 + "fp32 i32 i32 i64",
        dict(KV_HEADS=8, GROUP=4, WIDTH=128, KV_BLOCK=16, WIDE=64, NARROW=16, BLOCK_L=64,
             BLOCK_H=128, UPCAST=False), num_warps=4, num_stages=3)
compile(attention_triton._attend, "*fp32 " * 6 + "*i32 " * 4 + "fp32 i32 i32 i64",
        dict(KV_HEADS=8, GROUP=4, WIDTH=128, KV_BLOCK=16, WIDE=64, NARROW=16, BLOCK_L=64,
             BLOCK_H=128, UPCAST=False), "_attend in float32", num_warps=4, num_stages=3)
compile(attention_triton._merge, "*fp32 *fp32 *bf16 *i32 i32 i32", dict(PARTS=16, BLOCK_H=128))
compile(rms_norm._rms_norm, half * 5 + "i32 i32 fp32", dict(BLOCK=4096, ADDED=True), num_warps=8)
compile(rope_store._rope_store, half * 8 + "*i64 fp32 i32 i64 " + "i32 " * 4,
        dict(NORMED=True, BLOCK_X=8, BLOCK_H=128))
compile(silu_mul._silu_mul, half * 2 + "i32 i32", dict(BLOCK=1024))
compile(kv_store._kv_store, half * 2 + "*i64 i64 i32 i32 i32 i32", dict(BLOCK_K=8, BLOCK_H=128))
print(json.dumps(found))
"""


def test_every_kernel_compiles_for_an_h200(tmp_path: Path) -> None:
    """Wide tiles use the full rate of the tensor cores, and two programs fit in 227 KB of shared
    memory."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    if "Cannot find ptxas" in done.stderr:
        pytest.skip("this Triton brings no assembler")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = {"_attend", "_merge", "_rms_norm", "_rope_store", "_silu_mul", "_kv_store"}
    assert set(found) == names | {"_attend in float32"}
    assert found["_attend"]["wgmma"]
    assert found["_attend"]["shared"] * 2 < 227 * 1024
    assert found["_attend in float32"]["shared"] < 227 * 1024
