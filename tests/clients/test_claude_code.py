"""Claude Code, the coding agent, on messages: a session in which it runs one command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.clients.conftest import Sent, packages_of_npm

# The program itself. The package that names it would copy it by a script of its own.
PROGRAM = "@anthropic-ai/claude-code-linux-x64"


def test_a_session(sent: Sent, tmp_path: Path) -> None:
    """The client asks for a title and for an answer, runs the command that comes, sends what it
    said, and prints the last answer. It is started as `weftline serve --for coding-agent` says."""
    claude = packages_of_npm(PROGRAM) / "node_modules" / PROGRAM / "claude"
    known = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PLACE": "Rome",
        "ANTHROPIC_BASE_URL": sent.recording.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "null",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "null",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    done = subprocess.run(
        [claude, "-p", "Ask Bash", "--allowedTools", "Bash"],
        cwd=tmp_path,
        env=known,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "It is sunny in Rome."), done.stderr
    asked, seen = [body for body in sent.bodies if body.get("tools")]
    assert asked["system"][0]["text"].startswith("x-anthropic-billing-header: ")
    assert asked["stream"] and asked["max_tokens"] >= 4096
    [call] = [one for one in seen["messages"][-2]["content"] if one["type"] == "tool_use"]
    [result] = [one for one in seen["messages"][-1]["content"] if one["type"] == "tool_result"]
    assert (call["name"], call["input"]) == ("Bash", {"command": "echo sunny in $PLACE"})
    assert (result["tool_use_id"], result["content"]) == (call["id"], "sunny in Rome")
