"""The engine's process is killed under load: nothing hangs, and every loss is reported."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx2
import pytest

from weftline import Client, Output, semantic_function
from weftline.errors import EngineFailed
from weftline.local import local_server


@semantic_function
def story(seed, text=Output(max_tokens=400, temperature=0, ignore_eos=True)):  # noqa: B008
    """Tell a long story about {{input:seed}}. {{output:text}}"""


@semantic_function
def title(text, line=Output(max_tokens=4)):  # noqa: B008
    """{{input:text}} Title: {{output:line}}"""


def test_kill_minus_nine(smollm2_directory: Path) -> None:
    """The running call and its consumer fail with the reason, and the engine comes back."""
    with local_server(str(smollm2_directory)) as url, Client(url) as client, client.session():
        told = story("a fox")
        named = title(told)
        parts = told.stream()
        next(parts)
        os.kill(_youngest_engine(), signal.SIGKILL)
        with pytest.raises(EngineFailed, match="died while it ran this call") as caught:
            list(parts)
        assert caught.value.call == "story"
        with pytest.raises(EngineFailed) as caught:
            named.get()
        assert caught.value.call == "story"
        deadline = time.monotonic() + 60
        while httpx2.get(f"{url}/health/ready").status_code != 200:
            assert time.monotonic() < deadline, "the engine did not come back"
            time.sleep(0.1)
        again = title("A fox.")
        assert isinstance(again.get(), str)


def _youngest_engine() -> int:
    """Our descendant engine that started last. Servers of other tests may have engines too."""
    engines = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"weftline_engine.own.engine_process" in path.read_bytes().split(b"\0")
    ]
    return max(filter(_is_ours, engines), key=lambda pid: int(_stat(pid)[19]))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, …, start time."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _is_ours(pid: int) -> bool:
    while pid > 1:
        pid = int(_stat(pid)[1])
        if pid == os.getpid():
            return True
    return False
