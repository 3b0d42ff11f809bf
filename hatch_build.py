"""Builds the C kernels into the wheel: every variant that this machine's compiler can make.

Such a wheel is of one platform. Without a compiler, or with WEFTLINE_WHEEL=any in the environment,
the wheel is of any platform, and a machine that has a compiler builds its variant at the first
start. The compiler's OpenMP library comes with the kernels, for machines that have none; GCC's
Runtime Library Exception allows that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_TARGET = "weftline_kernels/cpu/lib"
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)")
_OLDEST = 17  # of manylinux tags: CentOS 7


class Kernels(BuildHookInterface):  # type: ignore[misc]
    """Adds one sealed library a variant, and the platform's tag, to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the install is editable: a checkout compiles what its sources say."""
        self._folder: Path | None = None
        plain = os.environ.get("WEFTLINE_WHEEL") == "any"
        if self.target_name != "wheel" or version == "editable" or plain:
            return
        sys.path.insert(0, str(Path(self.root) / "kernels"))
        try:
            from weftline_kernels.cpu.compiler import NoCompiler, find_compiler, library_for
            from weftline_kernels.cpu.loader import OPENMP
            from weftline_kernels.cpu.variants import VARIANTS, this_machine
        finally:
            del sys.path[0]
        machine = this_machine()
        wanted = [one for one in VARIANTS if one.architecture == machine.architecture]
        self._folder = Path(tempfile.mkdtemp(prefix="weftline-kernels-"))
        built: list[bytes] = []
        with ThreadPoolExecutor() as pool:
            pending = [(one.name, pool.submit(library_for, one, machine)) for one in wanted]
            for name, one in pending:
                try:
                    library = one.result()
                except NoCompiler as reason:
                    self.app.display_warning(f"the wheel has no {name} kernels: {reason}")
                    continue
                path = self._folder / f"{name}.so"
                path.write_bytes(library)
                build_data["force_include"][str(path)] = f"{_TARGET}/{path.name}"
                built.append(library)
        if built:
            if (openmp := _openmp(find_compiler(), OPENMP)) is not None:
                build_data["force_include"][str(openmp)] = f"{_TARGET}/{OPENMP}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform(built, machine.architecture)}"
        else:
            self.app.display_warning("the wheel is built without kernels, for any platform")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries, which are in the wheel now."""
        if self._folder is not None:
            shutil.rmtree(self._folder)


def _openmp(compiler: str | None, name: str) -> Path | None:
    """The OpenMP library of the compiler. The decoder is linked without one."""
    asked = [str(compiler), f"-print-file-name={name}"]
    found = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    return found.resolve() if found.is_absolute() else None


def _platform(libraries: list[bytes], architecture: str) -> str:
    """The manylinux tag of the newest symbol of glibc that a library uses. They use no other
    library but OpenMP, which is found at run time: the wheel's own is the last resort, and needs a
    glibc as new as the machine's that built it."""
    if sys.platform != "linux" or not any(map(_GLIBC.search, libraries)):
        return f"{sys.platform}_{architecture}"
    newest = max(int(found) for one in libraries for found in _GLIBC.findall(one))
    return f"manylinux_2_{max(newest, _OLDEST)}_{architecture}"
