"""The settings of the embedded engine. Imports no torch, because the server holds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from weftline_engine.api.engine_option import TORCH, VLLM, setting

# Said where a GPU is.
NO_DRAFTS_ON_A_GPU = (
    "drafts are verified on the CPU only, because on a GPU a row's last bits depend on the rows "
    "beside it"
)


class Precision(StrEnum):
    """The type of weights, activations and KV cache."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class LoadFormat(StrEnum):
    """Where the weights come from."""

    AUTO = "auto"  # the directory's files
    DUMMY = "dummy"  # random numbers, for benchmarks: config.json is enough


class Quantize(StrEnum):
    """The type to which weights of 16 bits and more are quantised when they are loaded."""

    NONE = "none"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


class Device(StrEnum):
    """Where the model runs."""

    AUTO = "auto"  # on a CUDA device where torch and Triton have one, else on the CPU
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    """What an operator may say of the engine.

    On the CPU the memory for contexts of `host_kv_tokens` tokens comes on top of the KV cache. The
    engine computes on `cores`, so that the engines of one machine can have separate ones; empty
    means all. With `tree_attention`, the keys and values of a common prefix are read once in a step
    for all sequences. With `drafting`, guesses of several tokens are verified in one step if that
    pays and the C decoder runs the model.
    """

    device: str = setting(
        Device.AUTO,
        TORCH,
        "where the model runs; auto takes a GPU if there is one (default: auto)",
        choices=Device,
    )
    load_format: str = setting(
        LoadFormat.AUTO,
        (*TORCH, *VLLM),
        "dummy makes random weights from MODEL/config.json, for benchmarks (default: auto)",
        choices=LoadFormat,
    )
    quantize: str = setting(
        Quantize.NONE,
        TORCH,
        "quantise weights of 16 bits and more when they are loaded, for the C kernels (default: "
        "none); a quantised GGUF file keeps its types",
        choices=Quantize,
    )
    kv_fraction: float | None = setting(
        None,
        TORCH,
        "share of the memory, free after the model is loaded, that the KV cache takes (default: "
        "0.85 on a GPU; a third on the CPU, at most 65,536 tokens)",
        metavar="SHARE",
        type=float,
    )
    host_kv_tokens: int = setting(
        0,
        TORCH,
        "tokens of contexts that are copied to host memory while a tool runs and others wait for "
        "room (default: 0)",
        metavar="TOKENS",
        type=int,
    )
    cores: tuple[int, ...] = setting((), TORCH)
    tree_attention: bool = setting(True, TORCH)
    drafting: bool = setting(True, TORCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedConfig(EmbeddedSettings):
    """The settings of the child process. `kv_tokens` go before `kv_fraction`."""

    model: Path
    name: str | None = None  # the announced name; None: the directory's name
    dtype: Precision | str = Precision.BFLOAT16
    kv_tokens: int | None = None
    block_size: int = 16
    max_running: int = 64
    step_tokens: int | None = None  # None: measured on the CPU, 2,048 on a GPU
    seed: int = 0

    module: ClassVar[str] = "weftline_engine.own.engine_process"

    def __post_init__(self) -> None:
        for name, value, kind in (
            ("load_format", self.load_format, LoadFormat),
            ("quantize", self.quantize, Quantize),
            ("dtype", self.dtype, Precision),
            ("device", self.device, Device),
        ):
            if value not in list(kind):
                raise ValueError(f"{name} {value!r} is none of {', '.join(kind)}")
        if self.kv_tokens is not None and self.kv_tokens < self.block_size:
            raise ValueError(f"kv_tokens {self.kv_tokens} is less than a block, {self.block_size}")
        if self.host_kv_tokens < 0:
            raise ValueError(f"host_kv_tokens {self.host_kv_tokens} is less than 0")
        if not os.sched_getaffinity(0).issuperset(self.cores):
            here = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            raise ValueError(f"cores {list(self.cores)} must be among those of the server: {here}")
        if self.kv_fraction is not None and not 0 < self.kv_fraction <= 1:
            raise ValueError(f"kv_fraction {self.kv_fraction} must lie between 0 and 1")
        if self.step_tokens is not None and self.step_tokens <= self.max_running:
            raise ValueError(
                f"step_tokens {self.step_tokens} must exceed max_running {self.max_running}"
            )

    def environment(self, outer: Mapping[str, str]) -> dict[str, str]:
        return dict(outer)

    def arguments(self, fd: int) -> list[str]:
        """The child's command line."""
        words = [
            "--fd",
            str(fd),
            "--model",
            str(self.model),
            "--dtype",
            str(self.dtype),
            "--block-size",
            str(self.block_size),
            "--max-running",
            str(self.max_running),
            "--load-format",
            str(self.load_format),
            "--quantize",
            str(self.quantize),
            "--device",
            str(self.device),
            "--seed",
            str(self.seed),
            "--host-kv-tokens",
            str(self.host_kv_tokens),
        ]
        for option in ("kv_tokens", "kv_fraction", "step_tokens", "name"):
            value = getattr(self, option)
            if value is not None:
                words += [f"--{option.replace('_', '-')}", str(value)]
        if self.cores:
            words += ["--cores", ",".join(map(str, self.cores))]
        for option in ("tree_attention", "drafting"):
            if not getattr(self, option):
                words.append(f"--no-{option.replace('_', '-')}")
        return words
