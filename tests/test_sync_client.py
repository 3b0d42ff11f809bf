"""The synchronous client is what `.ci/sync_client.py` makes of the asynchronous one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = Path(".ci/sync_client.py")
SDK = Path("client/weftline/sdk")
FILES = ("aclient.py", "aconnection.py", "client.py", "connection.py")


def check(root: Path) -> tuple[int, str]:
    """The exit code and the message of the script's check in a tree."""
    command = [sys.executable, root / SCRIPT, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def test_the_synchronous_client_is_current() -> None:
    """Whoever changes the asynchronous client runs the script."""
    assert check(ROOT) == (0, "")


def test_a_stale_or_a_new_passage_is_an_error(tmp_path: Path) -> None:
    """The check names a file that is behind its source, and a passage that the source lost."""
    for path in (SCRIPT, Path("pyproject.toml"), *(SDK / name for name in FILES)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    source = tmp_path / SDK / "aclient.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("The names of the served models.", "The models' names."))
    assert check(tmp_path) == (1, "not current: client.py; run python .ci/sync_client.py")
    source.write_text(text.replace("It is not open yet.", "It is closed."))
    code, said = check(tmp_path)
    assert code == 1 and said.startswith("aclient.py has no ") and "It is not open yet." in said
