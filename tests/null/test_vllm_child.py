"""What a vLLM child's errors look like to an operator: while it serves, and when it is ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from weftline_engine.remote.vllm.config import VLLMConfig
from weftline_engine.remote.vllm.vllm_child import Child

# It writes an error with each answer and one when it is ended, as vLLM's processes do.
SERVER = """
import http.server, signal, socketserver, sys

def say(text):
    print(f"(APIServer pid=1) ERROR 11-29 18:00:00 [core.py:9] {text}", file=sys.stderr, flush=True)

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        say("a step failed")
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass

def end(*_):
    say("EngineCore encountered an issue")
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
socketserver.UnixStreamServer(sys.argv[1], Answers).serve_forever()
"""


class PretendedVLLM(Child):
    """A small server in place of vLLM."""

    async def _prepared(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return [sys.executable, "-c", SERVER, str(self._folder / "http")], os.environ


async def test_errors_are_shown_until_we_end_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = PretendedVLLM(VLLMConfig(model=tmp_path, engine_python="python", ready_s=30.0))
    await child.start()
    await child.close()
    assert capsys.readouterr().err == "vllm: a step failed\n"
    assert child._lines[-1].endswith("EngineCore encountered an issue")
