"""The NEON variant, built by a cross compiler and run by an emulator, if both are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from weftline_kernels.cpu.compiler import COMMON, FOLDER

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PANEL = 32  # columns, where a vector has 16 lanes


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of the decoder as a program for aarch64."""
    for needed in (COMPILER, EMULATOR):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    built = tmp_path_factory.mktemp("neon") / "parts"
    source = Path(__file__).with_name("parts_elsewhere.c")
    command = [COMPILER, *COMMON, "-fopenmp", "-static", f"-I{FOLDER}", str(source), "-o"]
    done = subprocess.run(
        [*command, str(built), "-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return built


def packed(weight: torch.Tensor) -> torch.Tensor:
    """Panels of rows, padded with zeros: pairs of columns, then the rows (packing.h)."""
    rows, inner = weight.shape
    padded = torch.zeros(-(-rows // PANEL) * PANEL, inner, dtype=torch.bfloat16)
    padded[:rows] = weight
    return padded.view(-1, PANEL, inner // 2, 2).transpose(1, 2).contiguous()


@pytest.mark.parametrize(
    ("rows", "inner", "width"), [(1, 576, 70), (2, 96, 33), (7, 80, 64), (30, 576, 31)]
)
def test_neon_computes_what_torch_does(program: Path, rows: int, inner: int, width: int) -> None:
    """Products of 1, 2, 3 and more rows, exp and norms."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inner, generator=generator)
    weight = torch.randn(width, inner, generator=generator).bfloat16()
    norm = torch.rand(inner, generator=generator)
    sent = [
        torch.tensor([rows, inner, width]),
        x,
        packed(weight),
        norm,
    ]
    data = b"".join(one.contiguous().view(torch.uint8).numpy().tobytes() for one in sent)
    done = subprocess.run([EMULATOR, str(program)], input=data, capture_output=True, check=True)
    numbers = torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy())
    product, exp, normed = numbers.split([rows * width] + [rows * inner] * 2)

    expected = x.double() @ weight.double().T
    torch.testing.assert_close(
        product.view(rows, width).double(), expected, atol=2e-5 * inner**0.5, rtol=0
    )
    low = -x.abs()
    assert float((exp.view_as(x).double() / low.double().exp() - 1).abs().max()) < 1e-6
    torch.testing.assert_close(
        normed.view_as(x),
        torch.nn.functional.rms_norm(low, (inner,), norm, 1e-5),
        atol=1e-5,
        rtol=0,
    )
