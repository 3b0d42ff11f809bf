"""The command of deploy/weftline.service runs with its own settings, on a null engine."""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path
from typing import Any

import httpx2

from weftline import Client, Output, semantic_function
from weftline.local import local_server

DEPLOY = Path(__file__).parents[2] / "deploy"


@semantic_function(chat=True)
def draft(topic: Any, line: Any = Output(max_tokens=4)) -> Any:  # noqa: B008
    """Write one sentence about {{input:topic}}. {{output:line}}"""


def test_the_units_command_serves_and_keeps_its_sessions(tmp_path: Path) -> None:
    """Only the key opens it. What was accepted is found after a restart by the same command."""
    key = "k" * 32
    (tmp_path / "key").write_text(key + "\n")
    (tmp_path / "key").chmod(stat.S_IRUSR)
    settings = (DEPLOY / "weftline.toml").read_text().replace('engine = "torch"', 'engine = "null"')
    (tmp_path / "weftline.toml").write_text(settings)
    unit = (DEPLOY / "weftline.service").read_text()
    (command,) = re.findall(r"^ExecStart=\S+/weftline serve (.*)$", unit, re.M)
    for place in ("/etc/weftline", "${CREDENTIALS_DIRECTORY}", "${STATE_DIRECTORY}"):
        assert place in command
        command = command.replace(place, str(tmp_path))
    with local_server(*shlex.split(command)) as url:
        assert httpx2.get(f"{url}/v1/models").status_code == 401
        with Client(url, api_key=key) as client, client.session() as session:
            assert draft("weaving").get()
    with local_server(*shlex.split(command)) as url:
        found = httpx2.get(f"{url}/v1/sessions", headers={"authorization": f"Bearer {key}"}).json()
        assert [row["session_id"] for row in found["sessions"]] == [session.id]
