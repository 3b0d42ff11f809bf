"""The model cache: each entry is made in a temporary folder and renamed when it is complete.

<home>/models/<key>/             an entry: a Hugging Face directory and its manifest
<home>/models/<key>.lock         locked while the entry is made
<home>/models/.partial-<key>-*/  an unfinished entry; the process that holds the lock removes it
<home>/models/.download-<key>/   files that were fetched, whole or in part, for the next attempt
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

from weftline_engine.own.models.name import ModelUnavailable

MANIFEST = "weftline.json"

# Increase it when the converter's output changes. Entries of an older format are made again.
FORMAT = 3

# Bytes to leave free on the disk beside a new entry, so that a pull never fills it.
SPARE_BYTES = 32 << 20

_MANIFEST_LIMIT = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def default_home() -> Path:
    """Return `$WEFTLINE_HOME`, else `$XDG_CACHE_HOME/weftline`, else ~/.cache/weftline."""
    chosen = os.environ.get("WEFTLINE_HOME")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "weftline"


class Cache:
    """The entries under one home folder. The first entry creates the folder."""

    def __init__(self, home: Path) -> None:
        self.root = home / "models"

    def find(self, key: str) -> Path | None:
        """Return the entry of `key`, or None unless it is complete and of the current format."""
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
        """Lock `key`, and provide an empty folder in which to make its entry.

        The folder is removed at the end, except for what `publish` renamed. Another process may
        make the entry while this one waits for the lock, so call `find` again inside. Raises
        ModelUnavailable if the cache is not writable.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.root / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self.refused(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Remove what a killed process left. No other process is at work: we hold the lock.
            for stale in self.root.glob(f".partial-{key}-*"):
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=self.root, prefix=f".partial-{key}-") as partial:
                yield Path(partial)
        except OSError as error:
            raise self.refused(error) from error
        finally:
            os.close(lock)

    def downloads(self, key: str) -> Path:
        """The folder of what was fetched for the entry of `key`. It stays until it is used, so that
        an interrupted download goes on."""
        return self.root / f".download-{key}"

    def publish(self, key: str, finished: Path, source: dict[str, Any]) -> Path:
        """Make the folder `finished` the entry of `key`, atomically, and return the entry."""
        files = {path.name: path.stat().st_size for path in sorted(finished.iterdir())}
        manifest = {"format": FORMAT, "source": source, "files": files}
        (finished / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in finished.iterdir():
            _flush(path)
        entry = self.root / key
        if entry.exists():  # it is damaged or of an older format
            shutil.rmtree(entry)
        finished.rename(entry)
        _flush(self.root)
        return entry

    def need(self, size: int, what: str) -> None:
        """Raise ModelUnavailable unless `size` bytes and SPARE_BYTES are free."""
        free = shutil.disk_usage(self.root).free
        if free < size + SPARE_BYTES:
            raise ModelUnavailable(
                f"{what} needs {_megabytes(size + SPARE_BYTES)} of disk in {self.root}, and "
                f"{_megabytes(free)} are free: free some space, or set WEFTLINE_HOME to a folder "
                "on a larger disk"
            )

    def refused(self, error: OSError) -> ModelUnavailable:
        """Return the operating system's error as a sentence for the user."""
        if error.errno in _FULL:
            return ModelUnavailable(
                f"the disk of {self.root} is full: free some space, or set WEFTLINE_HOME to a "
                "folder on a larger disk"
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
        return None  # no entry, or a damaged one
    return manifest if isinstance(manifest, dict) else None


def _flush(path: Path) -> None:
    """Write `path` to the disk, before the rename that publishes it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
