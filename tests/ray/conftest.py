"""Ray nodes as users start them: `ray start` processes on this machine, with a token."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

READY_S = 90.0


@dataclass
class Nodes:
    """A head and what joined it; `slots` are logical resources, for this machine has no GPU."""

    folder: Path
    environment: dict[str, str]
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, slots: int) -> None:
        """Start a node and wait until the cluster has it."""
        where = ("--address", self.address) if self.address else ("--head", "--port", "0")
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self.processes[name] = subprocess.Popen(
                [
                    *("ray", "start", "--block", *where, "--node-name", name),
                    *("--num-cpus", "1", "--resources", f'{{"slot": {slots}}}'),
                    *("--object-store-memory", "80000000", "--disable-usage-stats"),
                    *(("--include-dashboard", "false") if not self.address else ()),
                    *(("--temp-dir", str(self.folder)) if not self.address else ()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            assert self.processes[name].poll() is None, log.read_text()[-2000:]
            time.sleep(0.1)
        if not self.address:
            text = log.read_text()
            self.address = text.split("--address='")[1].split("'")[0]

    def kill(self, name: str) -> None:
        """kill -9 of everything that the node runs, as when its machine loses power."""
        top = psutil.Process(self.processes[name].pid)
        family = [top, *top.children(recursive=True)]
        for process in family:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.processes.pop(name).wait()


@pytest.fixture(scope="session")
def token() -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module")
def nodes(token: dict[str, str]) -> Iterator[Nodes]:
    """A head n0 with room for two replicas."""
    # Ray's sockets lie in this folder, and a unix socket's path has at most 107 characters.
    folder = Path("/tmp") / f"wray-{os.getpid()}-{secrets.token_hex(2)}"
    folder.mkdir(mode=0o700)
    found = Nodes(folder, {**os.environ, **token})
    found.start("n0", slots=2)
    yield found
    for name in reversed(list(found.processes)):
        found.kill(name)
    subprocess.run(["rm", "-rf", str(folder)], check=True)
