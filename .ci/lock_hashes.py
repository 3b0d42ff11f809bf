"""Writes deploy/locked/*.txt: every package of the images, with the hashes of all its files.

    pip install uv && python .ci/lock_hashes.py

The versions are those of constraints.txt. The lists hold for every platform. torch and what it
brings have a list of their own, because a machine without a GPU needs none of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / "deploy" / "locked"
_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")
_UV = ("uv", "pip", "compile", "--universal", "--generate-hashes", "--python-version", "3.11")
_PLAIN = ("--no-header", "--no-annotate", "--no-emit-index-url", "-c", "constraints.txt")
_EXTRAS = ("server", "engine", "encryption", "otel", "gpu", "postgres")


def main() -> None:
    """Compile the requirements of the images and those of the build."""
    extras = [word for name in _EXTRAS for word in ("--extra", name)]
    packages = _compile("pyproject.toml", *extras)
    _write("torch", [one for one in packages if _TORCH.match(one)])
    _write("server", [one for one in packages if not _TORCH.match(one)])
    with tempfile.NamedTemporaryFile("w", suffix=".in") as wanted:
        wanted.write("hatchling>=1.27\n")
        wanted.flush()
        _write("build", _compile(wanted.name))


def _compile(*arguments: str) -> list[str]:
    """One text for each package: its version, its marker and its hashes."""
    done = subprocess.run([*_UV, *_PLAIN, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return re.split(r"\n(?=[a-z])", done.stdout.strip())


def _write(name: str, packages: list[str]) -> None:
    LOCKED.mkdir(exist_ok=True)
    lines = ["# Made by .ci/lock_hashes.py from constraints.txt.", *packages, ""]
    (LOCKED / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    print(f"{name}: {len(packages)} packages")


if __name__ == "__main__":
    main()
