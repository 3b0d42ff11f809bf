"""The names of the product's files, folders and classes.

Files and folders are named by nouns, not by a participle or an adverb. A name in several words is
judged by its last word: `compiled_chain` is a chain. Classes that differ have names that differ, in
the whole product, and so have files.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "client/weftline",
    "server/weftline_server",
    "engine/weftline_engine",
    "kernels/weftline_kernels",
    "integrations/langchain/langchain_weftline",
    "integrations/llamaindex/llama_index",
)

# Words of the field that end like a participle, and are none.
NOUNS = frozenset(
    {
        "batching",
        "bookkeeping",
        "drafting",
        "embed",
        "embedding",
        "encoding",
        "feed",
        "indexing",
        "listing",
        "loading",
        "logging",
        "lowering",
        "need",
        "planning",
        "sampling",
        "scheduling",
        "staging",
        "string",
        "tally",
        "timing",
        "wiring",
    }
)
# Participles without a regular ending, and adverbs.
_WORDS = """
again anew apart aside away beside chosen drawn early elsewhere found given gone held here
inside kept known late left lost made now once outside quiet seen sent shown soon taken then there
thrown together told twice upward written
"""
WORDS = frozenset(_WORDS.split())

# Names that users know: a path that they import from, and the engine that the docs call `embedded`.
PUBLIC = frozenset({"client/weftline/watching.py", "engine/weftline_engine/own/embedded"})


# Classes that share a name, and why.
SHARED = {
    "WeftlineRerank": "the class that replaces each framework's own; users of one import it",
    "WeftlineVectorStore": "the class that replaces each framework's own; users of one import it",
}


# File names that stand in several folders by design.
ROLES = {
    "__init__": "Python's name of a package's own file",
    "__main__": "Python's name of a package's program",
    "base": "the class that the others of a folder share; LlamaIndex asks for the name",
    "config": "the configuration of what stands beside it",
    "engine": "the engine of its folder",
}
# Folders whose files have names that somebody else gives: a name there may stand elsewhere too.
NAMED = {
    "client/weftline": "a public name, of what has its home in sdk/ or contract/",
    "server/weftline_server/lowering/kinds": "a kind of steps each, by its name",
}


def is_noun(name: str) -> bool:
    """Whether the last word of a file's or a folder's name can be a noun."""
    word = name.rpartition("_")[2]
    if word in NOUNS:
        return True
    return word not in WORDS and not word.endswith(("ing", "ed", "ly"))


def faults() -> set[str]:
    """The paths of the product's files and folders whose name is no noun."""
    found = set[str]()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder)
            for part in (inside, *inside.parents):
                if part.name and not is_noun(part.stem):
                    found.add(f"{folder}/{part.as_posix()}")
    return found - PUBLIC


def test_files_and_folders_are_named_by_nouns() -> None:
    """No path but a public one is named by a participle or an adverb."""
    assert sorted(faults()) == []
    assert {path for path in PUBLIC if not (ROOT / path).exists()} == set()


def shared_names(folders: tuple[str, ...]) -> set[str]:
    """The names of classes that several files define, without names that are private to a file."""
    found: defaultdict[str, set[Path]] = defaultdict(set)
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].add(path)
    return {name for name, paths in found.items() if len(paths) > 1}


def test_classes_that_differ_have_names_that_differ() -> None:
    """Two classes of the product share a name only where the list says why."""
    assert sorted(shared_names(FOLDERS)) == sorted(SHARED)


def shared_files() -> dict[str, list[str]]:
    """The names that several files of the product have, each with its files."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            home = path.parent.relative_to(ROOT).as_posix()
            if path.stem not in ROLES and home not in NAMED:
                found[path.stem].append(f"{home}/{path.name}")
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def test_files_that_differ_have_names_that_differ() -> None:
    """Two files of the product share a name only where the tables say why."""
    assert shared_files() == {}


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        ("router", True),
        ("compiled_chain", True),
        ("sampling", True),
        ("__init__", True),
        ("routing", False),
        ("lowered", False),
        ("known_given", False),
        ("elsewhere", False),
        ("quickly", False),
    ],
)
def test_a_name_that_is_no_noun_is_found(name: str, noun: bool) -> None:
    """The check itself, on one name."""
    assert is_noun(name) is noun
