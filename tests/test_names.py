"""The names of the product's files and folders: nouns, no participle and no adverb.

A name in several words is judged by its last word: `compiled_chain` is a chain.
"""

from __future__ import annotations

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
again ahead anew apart aside away beside chosen drawn early elsewhere found given gone held here
inside kept known late left lost made now once outside quiet seen sent shown soon taken then there
thrown together told twice upward written
"""
WORDS = frozenset(_WORDS.split())

# Names that users know: a path that they import from, and the engine that the docs call `embedded`.
PUBLIC = frozenset({"client/weftline/watching.py", "engine/weftline_engine/embedded"})


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
