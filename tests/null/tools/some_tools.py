"""Tools of the tests, good ones and bad ones. The engine's zygote imports this module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from weftline.toolkit import Reject, StreamingTool, tool


@tool(effects="none", timeout_s=20)
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(name="look_up", effects="none")
def search(query: str, kind: Literal["web", "news"] = "web") -> dict[str, Any]:
    """Search the web."""
    return {"found": query, "kind": kind}


@tool(effects="once")
def note(path: str, wait_s: float = 0.0, first_s: float = 0.0) -> str:
    """Wait `first_s`, write a line to a file, and wait `wait_s`."""
    time.sleep(first_s)
    with Path(path).open("a") as file:
        file.write("noted\n")
    time.sleep(wait_s)
    return "noted"


@tool(effects="none")
def wait_for(path: str) -> str:
    """Say that it began, and wait until a file is there."""
    begun = Path(f"{path}.begun")
    begun.write_text(begun.read_text() + "begun\n" if begun.exists() else "begun\n")
    while not Path(path).exists():
        time.sleep(0.01)
    return "waited"


@tool(effects="none", timeout_s=0.3)
def hang() -> None:
    """Never end, and ignore the signal that asks for an end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


@tool(effects="none", timeout_s=0.3)
def spin() -> None:
    """Use the CPU for ever."""
    while True:
        pass


@tool(effects="none")
def niceness() -> list[int]:
    """How the call's process is scheduled, how nice it is, and its group if the kernel has any."""
    group = Path("/proc/self/autogroup")
    said = [int(group.read_text().split()[-1])] if group.exists() else []
    return [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), *said]


@tool(effects="none")
def fail() -> None:
    """Raise an error."""
    raise LookupError("nothing is here")


@tool(effects="none")
def leave() -> None:
    """Ask Python to end."""
    sys.exit(3)


@tool(effects="idempotent")
def die() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


@tool(effects="none")
def flood() -> str:
    """Return and print 100 MB."""
    print("x" * 20_000_000)
    return "x" * 20_000_000


@tool(effects="none")
def fill_memory() -> int:
    """Take 64 GB of memory."""
    return len(bytearray(64 << 30))


@tool(effects="none")
def strange() -> object:
    """Return what is not JSON."""
    return object()


@tool(effects="none")
def malformed(size: int) -> None:
    """Write to the engine's socket past the frames."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2:
            try:
                os.write(number, size.to_bytes(4, "big") + b"no JSON, and no frame either")
            except OSError:
                continue
    os._exit(0)


@tool(effects="none", timeout_s=1.0)
def multiply(path: str) -> None:
    """Fork until nothing more is allowed, and leave the processes behind."""
    forks = 0
    while True:
        try:
            pid = os.fork()
        except OSError:
            time.sleep(60)
        if pid == 0:
            os.setsid()
            time.sleep(60)
            os._exit(0)
        forks += 1
        with open(path, "a") as told:  # a character a fork, at once: the call may be stopped
            told.write(".")
        if forks >= 500:
            time.sleep(60)


@tool(effects="none")
def leave_behind(seconds: int) -> int:
    """Start a process in a session of its own, and return its id."""
    return subprocess.Popen(["sleep", str(seconds)], start_new_session=True).pid


@tool(effects="none")
def environment() -> dict[str, str]:
    """The environment of the tool and of its parent."""
    parent = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode()
    return {"own": " ".join(f"{k}={v}" for k, v in os.environ.items()), "parent": parent}


class Forecast(StreamingTool):
    """The weather of the next days."""

    name = "forecast"
    effects = "none"
    timeout_s = 20
    parameters: ClassVar = {"location": str, "days": int}
    optional = ("days",)

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Any] = []

    def warm(self) -> None:
        self.heard.append("warm")

    def argument(self, name: str, value: Any) -> None:
        self.heard.append([name, value])
        if name == "location" and "," not in value:
            raise Reject("location has to be 'city, state'")

    def line(self, name: str, line: str) -> None:
        self.heard.append(line)

    def finish(self) -> Any:
        return [*self.heard, self.arguments]
