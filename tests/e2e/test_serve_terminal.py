"""`weftline serve` in a terminal says what it does while it does it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path


def until(terminal: int, words: str) -> str:
    """What the terminal shows up to these words."""
    seen = b""
    while words.encode() not in seen:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError as error:  # every process has closed the terminal
            raise AssertionError(f"it ended: {seen.decode(errors='replace')}") from error
        seen += part
    return seen.decode(errors="replace")


def test_a_start_in_a_terminal(smollm2_directory: Path) -> None:
    """The model, a bar up to the last byte of its weights, the kernels, the device and the cache,
    then the addresses of the server and of its page."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weftline_server", "serve", str(smollm2_directory)]
    server = subprocess.Popen(
        [*command, "--port", "0"], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL
    )
    os.close(theirs)
    try:
        shown = until(ours, "/ui")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    lines = [line for line in re.split(r"[\r\n]+", plain) if line]
    name = re.escape(smollm2_directory.name)
    assert lines[0] == f"engine: loading {smollm2_directory.name}"
    bars = [line for line in lines if line.startswith("engine: weights")]
    done, whole = re.findall(r"([\d.]+)/([\d.]+) MB", bars[-1])[0]
    assert done == whole and float(whole) > 1
    assert re.fullmatch(
        rf"engine: {name} in \w+ on cpu, \d+ cores; KV cache of [\d,]+ tokens, [\d.]+ GiB; "
        r"ready after [\d.]+ s",
        lines[-3],
    )
    address = lines[-2].removeprefix("weftline serves on ")
    assert lines[-1] == f"weftline shows its sessions on {address}/ui"
