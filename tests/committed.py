"""The files that git knows. Results that a user of this checkout has measured are not judged."""

from __future__ import annotations

import subprocess
from pathlib import Path


def committed(folder: Path) -> list[Path]:
    """The files below `folder` that git knows. Without git, as in an archive, it is all of them."""
    command = ["git", "-C", str(folder), "ls-files", "-z"]
    try:
        names = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return sorted(path for path in folder.rglob("*") if path.is_file())
    return sorted(path for name in names.split("\0") if (path := folder / name).is_file())


def linked(folder: Path, into: Path) -> Path:
    """A folder of links to the files below `folder` that git knows."""
    for path in committed(folder):
        link = into / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return into
