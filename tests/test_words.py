"""The words of docs/glossary.md: no file says an old name of a thing that has one name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVERYWHERE = ("client", "server", "engine", "kernels", "integrations", "bench", "cookbook", "docs")
# Where KV blocks are meant, a page can be nothing else.
OF_BLOCKS = ("engine", "kernels", "bench/gpu")
# What a newcomer reads from any line on: a paragraph there begins with a noun.
PRODUCT = ("client", "server", "engine", "kernels", "integrations")
PRONOUN = re.compile(r"(It|Its|They|Their|Those|(This|That|These|Both) (is|are|was|were|has))\b")
# The glossary names the old words, SGLang has a name of its own for the size of a block, and memory
# has pages.
EXEMPT = {
    "docs/glossary.md",
    "engine/weftline_engine/remote/sglang/facts.py",
    "kernels/weftline_kernels/cpu/memory.py",
}
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
    (r"answers?", ("server/weftline_server/http/kept_responses.py",), "response"),
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


def test_the_glossary_is_short() -> None:
    """A newcomer reads it once."""
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert 40 <= len(re.findall(r"^- \*\*", glossary, re.M)) <= 70


def test_every_folder_has_files() -> None:
    """A folder that was renamed would leave its words unchecked."""
    for _, folders, _ in OLD_WORDS:
        for folder in folders:
            assert any(files(folder)), folder


def test_the_check_finds_a_word() -> None:
    """A word by itself, and no word that contains it."""
    assert lines_with("pages?", "a page\npaged\npages of it") == [1, 3]
    assert lines_with("Slot|slot", "dataclass(slots=True)\na slot\n__slots__") == [2]


def paragraphs(source: str) -> Iterator[str]:
    """The paragraphs of all docstrings, and the comments that follow no other comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (ast.get_docstring(node) or "").split("\n\n")
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row = token.start[0]
            if row > last + 1 and token.line.lstrip().startswith("#"):
                yield token.string.lstrip("# ")
            last = row


def test_a_paragraph_does_not_begin_with_a_pronoun() -> None:
    """Its noun would stand in the paragraph before, or in no sentence at all."""
    found = [
        f"{path.relative_to(ROOT)}: {text[:60]}"
        for folder in PRODUCT
        for path in files(folder)
        if path.suffix == ".py" and "tests" not in path.parts
        for text in paragraphs(path.read_text(encoding="utf-8"))
        if PRONOUN.match(text)
    ]
    assert not found, found


def test_the_check_finds_a_pronoun() -> None:
    """In a docstring and in a comment; the second line of a comment goes on with a sentence."""
    source = '"""A file.\n\nIt is short."""\n# These\n# are\nx = 1  # They stand beside code.\n'
    assert [one for one in paragraphs(source) if PRONOUN.match(one)] == ["It is short."]
    assert PRONOUN.match("These are two.") and not PRONOUN.match("These two are one.")
