"""What the user of the embedded engine decides; imports no torch, so that a server may hold it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Precision(StrEnum):
    """The type of weights, activations and KV cache."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class LoadFormat(StrEnum):
    """Where the weights come from."""

    AUTO = "auto"  # the directory's files
    DUMMY = "dummy"  # random numbers, for benchmarks: config.json is enough


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedConfig:
    """What the child runs. `kv_tokens` None: 65,536, or what a third of the free memory holds."""

    model: Path
    name: str | None = None  # how it is announced; None: the directory's name
    dtype: Precision | str = Precision.BFLOAT16
    kv_tokens: int | None = None
    block_size: int = 16
    max_running: int = 64
    step_tokens: int = 512
    seed: int = 0
    load_format: LoadFormat | str = LoadFormat.AUTO

    def __post_init__(self) -> None:
        if self.load_format not in list(LoadFormat):
            formats = ", ".join(LoadFormat)
            raise ValueError(f"load_format {self.load_format!r} is none of {formats}")
        if self.dtype not in list(Precision):
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(Precision)}")
        if self.kv_tokens is not None and self.kv_tokens < self.block_size:
            raise ValueError(f"kv_tokens {self.kv_tokens} is less than a block, {self.block_size}")
        if self.step_tokens <= self.max_running:
            raise ValueError(
                f"step_tokens {self.step_tokens} must exceed max_running {self.max_running}"
            )

    def arguments(self, fd: int) -> list[str]:
        """The child's command line."""
        words = [
            *("--fd", str(fd), "--model", str(self.model), "--dtype", str(self.dtype)),
            *("--block-size", str(self.block_size), "--max-running", str(self.max_running)),
            *("--step-tokens", str(self.step_tokens), "--seed", str(self.seed)),
            *("--load-format", str(self.load_format)),
        ]
        if self.kv_tokens is not None:
            words += ["--kv-tokens", str(self.kv_tokens)]
        if self.name is not None:
            words += ["--name", self.name]
        return words
