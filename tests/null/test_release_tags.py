"""Each release of the changelog gets an annotated tag on the commit that gave it its section."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
_HEAD = "# Changelog\n\n## [Unreleased]\n\n"
_FIRST = "## [0.1.0] - 2026-01-01\n\nThe first.\n"
_SECOND = "## [0.2.0] - 2026-02-01\n\nThe second.\n\n"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tags", ROOT / ".ci" / "tags.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(
        ("git", *identity, *arguments), cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _commit(folder: Path, changelog: str) -> str:
    (folder / "CHANGELOG.md").write_text(changelog)
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "A change")
    return _git(folder, "rev-parse", "HEAD")


def test_each_release_is_tagged_once(tmp_path: Path) -> None:
    """The second release is cut and then its text is mended; the tag stays on the cut."""
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "config", "user.name", "a")
    _git(tmp_path, "config", "user.email", "a@example.com")
    first = _commit(tmp_path, _HEAD + _FIRST)
    _commit(tmp_path, _HEAD + "More.\n\n" + _FIRST)
    second = _commit(tmp_path, _HEAD + _SECOND + _FIRST)
    _commit(tmp_path, _HEAD + _SECOND.replace("second", "second one") + _FIRST)
    script = _script()
    assert script.tag(tmp_path) == ["v0.1.0", "v0.2.0"]
    assert script.tag(tmp_path) == []
    assert _git(tmp_path, "rev-parse", "v0.1.0^{commit}") == first
    assert _git(tmp_path, "rev-parse", "v0.2.0^{commit}") == second
    assert _git(tmp_path, "cat-file", "-t", "v0.2.0") == "tag"
    assert _git(tmp_path, "tag", "-l", "--format=%(contents)", "v0.1.0") == (
        "weftline 0.1.0\n\n## [0.1.0] - 2026-01-01\n\nThe first."
    )


def test_the_changelog_has_the_releases() -> None:
    """Unreleased changes are no release."""
    sections = _script().releases((ROOT / "CHANGELOG.md").read_text())
    assert list(sections)[:3] == ["0.1.0", "0.2.0", "0.3.0"]
