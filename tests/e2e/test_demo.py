"""The demo as a newcomer runs it, in float32, where plain and accelerated answers must be equal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from cookbook import demo

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(ROOT / "cookbook" / "demo.py")]


def test_the_demo_in_float32(smollm2_directory: Path, tmp_path: Path) -> None:
    """It exits 0 only if the texts are equal.

    A budget of no time gives the shortest texts. Each program has a bar for each way.
    """
    short = ["--seconds", "0", "--turns", "1", "--details"]
    command = [*DEMO, "--dtype", "float32", *short, "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    bars = re.findall(r"^(.*?)  +━+ +(\d+) requests +[\d.]+ s", done.stdout, re.MULTILINE)
    assert bars == [
        ("refine, 250 ms away, plain", "8"),
        ("refine, 250 ms away, accelerated", "1"),
        ("map-reduce, here, plain", "5"),
        ("map-reduce, here, accelerated", "1"),
        ("agent, slow tools, plain", "2"),
        ("agent, slow tools, early", "2"),
    ]
    last = re.sub(r"\d+\.\d\d", "N", done.stdout.splitlines()[-1])
    assert last == (
        "Same texts, 1 request instead of 8: N times as fast 250 ms away. "
        "1 instead of 5: N times as fast on this machine. "
        "An agent's slow tools, started early: N times."
    )
    for name, title in (("refine", "refine, 250 ms away"), ("map-reduce", "map-reduce, here")):
        drawn = ElementTree.parse(tmp_path / f"{name}.svg").getroot().iter()
        titles = [element.text for element in drawn if element.get("font-weight")]
        assert titles == [f"{title}, plain LangChain", f"{title}, accelerated by weftline"]


def test_a_faster_machine_gets_longer_texts() -> None:
    """From a fast machine to one that is too slow; tokens a second of prompts and of answers."""
    speeds = [(2000, 100), (500, 50), (300, 40), (150, 40), (8, 2)]
    planned = [demo.plan(demo.Speed(1 / prompt, 1 / output), 60.0) for prompt, output in speeds]
    assert planned == list(zip(demo.SIZES, (3, 2, 2, 2, 2), strict=True))


def test_the_ways_take_turns_in_beginning() -> None:
    """So that neither way always finds the engine as the other one left it."""
    assert [demo.ways(turn) for turn in range(3)] == [
        [demo.PLAIN, demo.ACCELERATED],
        [demo.ACCELERATED, demo.PLAIN],
        [demo.PLAIN, demo.ACCELERATED],
    ]


def test_equal_requests_that_differ_are_noise() -> None:
    """The spread is of the slowest request and the fastest one."""
    assert demo.Speed(0.01, 0.02, [1.0, 1.5, 1.2]).spread == demo.NOISE


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
