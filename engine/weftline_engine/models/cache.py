"""The model cache: finished entries only, each made in a folder of its own and then renamed.

<home>/models/<key>/             an entry: a Hugging Face directory and its manifest
<home>/models/<key>.lock         held while the entry is made
<home>/models/.partial-<key>-*/  an entry in the making; whoever holds the lock removes it
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weftline_engine.models.name import ModelUnavailable

MANIFEST = "weftline.json"

# Grows when the converter writes something else for the same source: older entries are made anew.
FORMAT = 1

# Left free beside what an entry takes, so that a pull never fills the disk to the last byte.
SPARE_BYTES = 32 << 20

_MANIFEST_LIMIT = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def default_home() -> Path:
    """`WEFTLINE_HOME`, else `$XDG_CACHE_HOME/weftline`, else ~/.cache/weftline."""
    chosen = os.environ.get("WEFTLINE_HOME")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "weftline"


class Cache:
    """The entries under one home folder, which is made when the first entry is."""

    def __init__(self, home: Path) -> None:
        self.root = home / "models"

    def find(self, key: str) -> Path | None:
        """The entry of `key`, or None where there is none that is whole and of today's format."""
        entry = self.root / key
        manifest = _read_manifest(entry / MANIFEST)
        if manifest is None or manifest.get("format") != FORMAT:
            return None
        files = manifest.get("files")
        if not isinstance(files, dict) or not files:
            return None
        for name, size in files.items():
            path = entry / name
            if not path.is_file() or path.stat().st_size != size:
                return None
        return entry

    @contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """An empty folder beside the entries, for the one process that may make `key` now.

        It is gone afterwards, with all that `publish` did not rename. Waits for other makers, so
        look for the entry again inside. Raises ModelUnavailable where the cache cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self.refused(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # What a killed process left: no other can be at work, for we hold the lock.
            for stale in self.root.glob(f".partial-{key}-*"):
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=self.root, prefix=f".partial-{key}-") as partial:
                yield Path(partial)
        except OSError as error:
            raise self.refused(error) from error
        finally:
            os.close(lock)

    def publish(self, key: str, finished: Path, source: dict[str, Any]) -> Path:
        """Make the folder `finished` the entry of `key`, at once and whole."""
        files = {path.name: path.stat().st_size for path in sorted(finished.iterdir())}
        manifest = {"format": FORMAT, "source": source, "files": files}
        (finished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in finished.iterdir():
            _flush(path)
        entry = self.root / key
        if entry.exists():  # damaged, or of an older format
            shutil.rmtree(entry)
        finished.rename(entry)
        _flush(self.root)
        return entry

    def need(self, size: int, what: str) -> None:
        """Raise ModelUnavailable unless `size` bytes, and some to spare, are free."""
        free = shutil.disk_usage(self.root).free
        if free < size + SPARE_BYTES:
            raise ModelUnavailable(
                f"{what} needs {_megabytes(size + SPARE_BYTES)} of disk in {self.root}, and "
                f"{_megabytes(free)} are free: free some, or set WEFTLINE_HOME to a larger disk"
            )

    def refused(self, error: OSError) -> ModelUnavailable:
        """What the operating system said, as a sentence for the user."""
        if error.errno in _FULL:
            return ModelUnavailable(
                f"the disk of {self.root} is full: free some space, or set WEFTLINE_HOME to a "
                "larger disk"
            )
        return ModelUnavailable(
            f"the model cache {self.root} cannot be used ({error.strerror or error}): set "
            "WEFTLINE_HOME to a folder that you can write to"
        )


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            manifest = json.loads(file.read(_MANIFEST_LIMIT))
    except (OSError, ValueError):
        return None  # no entry, or not one of ours: it is made (anew)
    return manifest if isinstance(manifest, dict) else None


def _flush(path: Path) -> None:
    """Put `path` on the disk before the rename that makes it count."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
