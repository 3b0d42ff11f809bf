"""The recipe that asks about a folder, as a reader runs it: real files and real embeddings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded
from tests.integrations.test_llama_ahead import CHAT, SUBMIT

ROOT = Path(__file__).resolve().parents[2]


def ask(folder: Path, question: str, url: str) -> list[str]:
    """What the recipe prints, without its progress bars."""
    command = [sys.executable, "-m", "cookbook.rag.ask_a_folder", str(folder), question]
    done = subprocess.run([*command, "--url", url], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Loading files" in done.stderr
    return done.stdout.splitlines()


def test_a_folder_is_asked_and_only_added_to(tmp_path: Path, start_script: StartServer) -> None:
    """The second run embeds the new file alone; the answer's calls are one request."""
    (tmp_path / "rivers.md").write_text("# Rivers\n\nThe Tiber flows through Rome.\n")
    (tmp_path / "hills.html").write_text("<p>The Palatine is a hill of Rome.</p>")
    rules = [("Original Answer", "Through Rome, past its hills."), ("", "Through Rome.")]
    with recorded(start_script(rules)) as proxy:
        first = ask(tmp_path, "Where does the Tiber flow?", proxy.url)
        assert first[:2] == ["2 files were new or had changed", "Through Rome, past its hills."]
        assert (len(proxy.bodies(SUBMIT)), proxy.bodies(CHAT)) == (1, [])
        (tmp_path / "seas.txt").write_text("The sea lies west of Rome.")
        second = ask(tmp_path, "Where does the Tiber flow?", proxy.url)
        assert second[0] == "1 files were new or had changed"
        assert second[2:][0] == "source: rivers.md" and len(second) == 5


def test_an_unknown_folder(tmp_path: Path) -> None:
    """LlamaIndex's own error says what is missing."""
    with pytest.raises(AssertionError, match="does not exist"):
        ask(tmp_path / "nowhere", "What?", "http://127.0.0.1:9")
