"""The attention libraries that may compute the own part of a step, and whether they are installed.

This module needs only the standard library, so that `weftline doctor` can tell. Which library is
taken is measured when the engine starts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionLibrary:
    """A library: its name for people, the module that is imported, and the packages it is in."""

    name: str
    module: str
    packages: tuple[str, ...]

    def version(self) -> str | None:
        """The version that is installed, or None without the library."""
        try:
            if importlib.util.find_spec(self.module) is None:
                return None
        except ModuleNotFoundError:  # a package above the module is missing
            return None
        for package in self.packages:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "of unknown version"


FLASHINFER = AttentionLibrary("FlashInfer", "flashinfer", ("flashinfer-python", "flashinfer"))
# FlashAttention 2 reads blocks of 256 tokens and more, and ours have 16.
FLASH_ATTENTION = AttentionLibrary(
    "FlashAttention 3", "flash_attn_interface", ("flash_attn_3", "flash-attn-3")
)
TORCH = AttentionLibrary("torch's varlen_attn", "torch.nn.attention.varlen", ("torch",))
LIBRARIES = (FLASHINFER, FLASH_ATTENTION, TORCH)
