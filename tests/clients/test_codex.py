"""A run of codex, the coding client, as its users start it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.clients.conftest import Sent, packages_of_npm

SETTINGS = """
model = "null"
model_provider = "weftline"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.weftline]
name = "weftline"
base_url = "{}"
wire_api = "responses"
"""


def test_a_run(base_url: str, sent: Sent, tmp_path: Path) -> None:
    """The client asks, runs the command that comes, sends what it said and prints the answer."""
    (tmp_path / "config.toml").write_text(SETTINGS.format(base_url))
    codex = packages_of_npm("@openai/codex") / "node_modules" / ".bin" / "codex"
    # The only command is the script's, and containers may not nest the client's own sandbox.
    options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    known = {"CODEX_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [codex, "exec", *options, "Ask the shell"],
        cwd=tmp_path,
        env=known | {"PLACE": "Rome"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    items = {one["item"]["type"]: one["item"] for one in events if one["type"] == "item.completed"}
    assert items["command_execution"]["aggregated_output"] == "sunny in Rome\n"
    assert items["agent_message"]["text"] == "It is sunny in Rome."
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] > 0
    asked, seen = sent.talks
    assert asked[0].startswith("developer: You are a coding agent")
    assert asked[-1] == "user: Ask the shell"
    assert seen[:-1] == [*asked, "call: exec_command(cmd=echo sunny in $PLACE)"]
    assert seen[-1].endswith("Output:\nsunny in Rome\n")
    assert sent.paths == {"/v1/responses"}
