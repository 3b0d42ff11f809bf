"""Finds the dtype that vLLM multiplies faster on this machine, so that it runs at its best."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench.harness.servers import VLLM_PYTHON, Kind, ServerSpec, environment
from weftline.errors import EngineUnavailable

DTYPES = ("bfloat16", "float32")
SECONDS = 1.5  # for each dtype
# The products of its CPU backend: the tokens of a prompt, and a decoding batch, by the widest
# matrix.
PROGRAM = """
import json, sys, time, torch
hidden, wide = map(int, sys.argv[1:3])
found = {}
for name in sys.argv[4:]:
    dtype = getattr(torch, name)
    weight = torch.randn(wide, hidden, dtype=dtype)
    batches = [torch.randn(rows, hidden, dtype=dtype) for rows in (256, 8)]
    least = float("inf")
    until = time.perf_counter() + float(sys.argv[3])
    while time.perf_counter() < until:
        began = time.perf_counter()
        for batch in batches:
            torch.nn.functional.linear(batch, weight)
        least = min(least, time.perf_counter() - began)
    found[name] = least * 1e3
print(json.dumps(found))
"""


def multiplications(model: Path, own: dict[str, str]) -> dict[str, float]:
    """Milliseconds of the model's widest product in each dtype, in vLLM's own torch. Takes 6 s.

    `own` is this process's environment. Raises EngineUnavailable if that torch does not run.
    """
    config = json.loads((model / "config.json").read_text())
    sizes = (str(config["hidden_size"]), str(config["intermediate_size"]))
    done = subprocess.run(
        [str(VLLM_PYTHON), "-c", PROGRAM, *sizes, str(SECONDS), *DTYPES],
        env=environment(ServerSpec(Kind.VLLM), own),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        said = done.stderr.strip() or "it said nothing"
        raise EngineUnavailable(f"vLLM's torch does not run: run `make install-bench`\n{said}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def fastest(found: dict[str, float]) -> str:
    """The dtype of the fastest product."""
    return min(found, key=lambda name: found[name])
