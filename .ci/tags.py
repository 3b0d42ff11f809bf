"""Tags each release of CHANGELOG.md on the commit that gave it a section, if it has no tag yet.

    python .ci/tags.py          # says what it tagged; `git push --tags` is left to the caller

The checkout needs its whole history. The tag's message is the section.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_SECTION = re.compile(
    r"^## \[(\d+\.\d+\.\d+)\] - .*?$(.*?)(?=^## |^\[|\Z)", re.MULTILINE | re.DOTALL
)


def releases(changelog: str) -> dict[str, str]:
    """The text of each dated section by its version, oldest first."""
    found = {match[1]: match[0].strip() for match in _SECTION.finditer(changelog)}
    return dict(reversed(found.items()))


def tag(root: Path) -> list[str]:
    """Create what is missing of v0.1.0, v0.2.0 … and return their names."""
    present = set(_git(root, "tag").split())
    created = []
    for version, text in releases((root / "CHANGELOG.md").read_text()).items():
        name = f"v{version}"
        if name in present:
            continue
        only = (f"-S## [{version}] - ", "--", "CHANGELOG.md")
        commits = _git(root, "log", "--reverse", "--format=%H", *only)
        if not commits:
            sys.exit(f"no commit gave {version} its section: fetch the whole history, or commit it")
        message = f"weftline {version}\n\n{text}"
        _git(root, "tag", "-a", name, commits.split()[0], "--cleanup=verbatim", "-m", message)
        created.append(name)
    return created


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ("git", *arguments), cwd=root, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    print(*tag(Path(__file__).parents[1]))
