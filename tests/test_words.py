"""The words of docs/glossary.md: no file says an old name of a thing that has one name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVERYWHERE = ("client", "server", "engine", "kernels", "integrations", "bench", "cookbook", "docs")
# Where KV blocks are meant, a page can be nothing else.
OF_BLOCKS = ("engine", "kernels", "bench/gpu")
# The glossary names the old words, the changelog keeps the texts of its versions.
EXEMPT = {"docs/glossary.md"}
ENDINGS = {".py", ".md", ".c", ".h", ".toml"}

# An old word as a pattern, the folders in which it is one, and the word to use.
OLD_WORDS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (r"value logs?", EVERYWHERE, "semantic variable"),
    (r"open primitives?", EVERYWHERE, "open op"),
    (r"(push|pushe[sd]|pushing) out", EVERYWHERE, "evict"),
    (r"(let|lets|letting) in", EVERYWHERE, "admit"),
    (r"waiters?|somebody who waits", EVERYWHERE, "reader"),
    (r"fill(s|ed|ing)? ahead", EVERYWHERE, "early fill"),
    (r"far servers?", EVERYWHERE, "delaying proxy"),
    (r"pages?|page_(size|at|count)|\w+_pages|PAGE", OF_BLOCKS, "block"),
    (r"Slot|slot", ("server/weftline_server/schedule", "server/weftline_server/runtime"), "member"),
    (r"answers?", ("server/weftline_server/http/responses.py",), "response"),
    (r"Line", ("engine/weftline_engine/transport",), "Connection"),
    (r"def take", ("client", "server", "engine", "kernels"), "a verb that says what is done"),
)


def files(folder: str) -> Iterator[Path]:
    """The sources and documents of a folder, or the one file that it names."""
    path = ROOT / folder
    for one in [path] if path.is_file() else sorted(path.rglob("*")):
        name = one.relative_to(ROOT).as_posix()
        if one.suffix in ENDINGS and name not in EXEMPT and "results" not in one.parts:
            yield one


def lines_with(pattern: str, text: str) -> list[int]:
    """The numbers of the lines that hold a word of `pattern`."""
    word = re.compile(rf"\b(?:{pattern})\b")
    return [number for number, line in enumerate(text.splitlines(), 1) if word.search(line)]


@pytest.mark.parametrize(("pattern", "folders", "say"), OLD_WORDS, ids=lambda one: str(one)[:20])
def test_an_old_word_is_gone(pattern: str, folders: tuple[str, ...], say: str) -> None:
    """Each file uses the name of the glossary."""
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in folders
        for path in files(folder)
        for number in lines_with(pattern, path.read_text(encoding="utf-8"))
    ]
    assert not found, f"say {say!r} (see docs/glossary.md): {found}"


def test_every_folder_has_files() -> None:
    """A folder that was renamed would leave its words unchecked."""
    for _, folders, _ in OLD_WORDS:
        for folder in folders:
            assert any(files(folder)), folder


def test_the_check_finds_a_word() -> None:
    """A word by itself, and no word that contains it."""
    assert lines_with("pages?", "a page\npaged\npages of it") == [1, 3]
    assert lines_with("Slot|slot", "dataclass(slots=True)\na slot\n__slots__") == [2]
