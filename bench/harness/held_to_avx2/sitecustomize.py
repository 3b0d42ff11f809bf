"""Holds vLLM to AVX2: Python runs this at the start of each of its processes.

vLLM chooses its own kernels by what torch says of the CPU, which no variable changes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_WIDER = ("_is_avx512_supported", "_is_avx512_bf16_supported", "_is_vnni_supported")
_AMX = ("_is_amx_tile_supported", "_is_amx_fp16_supported")


class _Held(MetaPathFinder):
    """Imports torch.cpu as it is, and then lets its questions answer no."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for name in (*_WIDER, *_AMX):
                setattr(module, name, lambda: False)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Held())
