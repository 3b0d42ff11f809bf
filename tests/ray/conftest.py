"""A Ray cluster with a token: `ray start` processes on this machine, as users start them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

READY_S = 90.0
TRIES = 3


@dataclass
class Nodes:
    """A head and further nodes. `slots` are logical resources, which stand for GPUs."""

    folder: Path
    environment: dict[str, str]
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, slots: int) -> None:
        """Start a node, and wait until it is part of the cluster. On a busy machine the parts of a
        node wait for each other in vain, and it ends; then it is started again.
        """
        log = self.folder / f"{name}.log"
        for _ in range(TRIES):
            self._begin(name, slots, log)
            if self._is_up(name, log):
                break
            self.kill(name)
        else:
            raise AssertionError(log.read_text()[-2000:])
        if not self.address:
            text = log.read_text()
            self.address = text.split("--address='")[1].split("'")[0]

    def _begin(self, name: str, slots: int, log: Path) -> None:
        where = ["--address", self.address]
        if not self.address:
            where = ["--head", "--port", "0", "--include-dashboard", "false"]
            where += ["--temp-dir", str(self.folder)]
        options = ["--node-name", name, "--num-cpus", "1"]
        options += ["--resources", f'{{"slot": {slots}}}']
        options += ["--object-store-memory", "80000000", "--disable-usage-stats"]
        with log.open("wb") as output:
            self.processes[name] = subprocess.Popen(
                ["ray", "start", "--block", *where, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def _is_up(self, name: str, log: Path) -> bool:
        """Wait until the node runs, or has ended."""
        deadline = time.monotonic() + READY_S
        while self.processes[name].poll() is None and time.monotonic() < deadline:
            if "Ray runtime started" in log.read_text():
                return True
            time.sleep(0.1)
        return False

    def kill(self, name: str) -> None:
        """Kill all processes of a node with SIGKILL, as when its machine loses power."""
        process = self.processes.pop(name)
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="session")
def token() -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="module")
def nodes(token: dict[str, str]) -> Iterator[Nodes]:
    """A head, n0, with room for two replicas."""
    # Ray puts sockets into this folder, and the path of a unix socket has at most 107 characters.
    folder = Path("/tmp") / f"wray-{os.getpid()}-{secrets.token_hex(2)}"
    folder.mkdir(mode=0o700)
    found = Nodes(folder, {**os.environ, **token})
    found.start("n0", slots=2)
    yield found
    for name in reversed(list(found.processes)):
        found.kill(name)
    subprocess.run(["rm", "-rf", str(folder)], check=True)
