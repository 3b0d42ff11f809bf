"""The demo as a newcomer runs it, in float32, where plain and compiled answers must be equal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(ROOT / "cookbook" / "demo.py")]


def test_the_demo_in_float32(smollm2_directory: Path, tmp_path: Path) -> None:
    """It exits 0 only if the texts are equal and no intermediate value reached the client."""
    command = [*DEMO, "--dtype", "float32", "--repeat", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "texts: equal" in done.stdout
    assert done.stdout.count(" 1 requests,  0 intermediate values through the client") == 2
    assert " 8 requests,  7 intermediate values through the client" in done.stdout
    assert "11 requests, 10 intermediate values through the client" in done.stdout
    for name, title in (
        ("refine", "refine, 250 ms away"),
        ("map-reduce", "map-reduce, same machine"),
    ):
        drawn = ElementTree.parse(tmp_path / f"{name}.svg").getroot().iter()
        titles = [element.text for element in drawn if element.get("font-weight")]
        assert titles == [f"{title}, plain LangChain", f"{title}, compiled by weftline"]


def test_ctrl_c_leaves_no_server(smollm2_directory: Path) -> None:
    """Interrupted in the middle, it stops the server that it started and exits with 130."""
    process = subprocess.Popen(
        [*DEMO, "--dtype", "float32"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    server = _child(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    deadline = time.monotonic() + 30  # a server that is still importing notices a little later
    while os.path.exists(f"/proc/{server}"):
        assert time.monotonic() < deadline, "the server outlived the demo"
        time.sleep(0.1)


def _child(pid: int) -> int:
    """The process that `pid` starts, once it does."""
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
