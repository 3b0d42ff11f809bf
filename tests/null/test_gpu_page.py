"""Every number of docs/gpu.md is marked, and no other page states a speed of a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"
# Generated from kept results, and the history.
MEASURED_PAGES = ("benchmarks.md",)
MARK = re.compile(r"\b(measured|compiled|predicted|assum\w+)\b", re.IGNORECASE)
# Names with digits: they are no figures of a GPU.
NAMES = re.compile(
    r"""\[[^]]*\]\([^)]*\)|`[^`]*`            # links and code
    |\b\d{1,2}\ November\ 2026\b
    |\b[HA]\d00\b|\bsm_\d+\b|\b[bB]?float\d+\b|\bint8\b
    |\b(Triton|torch|CUDA|Python|vLLM|FlashAttention|FlashInfer)\s\d[\d.]*
    |\b(SmolLM2|Qwen3|Llama-3|LLaMA)-[\d.]+[MB]\b|\b\d+B\b
    |\bFigures?\s\d+[ab]?((,|\sand)\s\d+[ab]?)*
    """,
    re.VERBOSE,
)
# A speed or a time.
RATE = re.compile(
    r"\d\s*(ms|us|µs|s|GB a second|TB/s|TFLOP/s|tokens a second|times( as fast)?)\b", re.ASCII
)
DEVICE = re.compile(r"\b(H100|H200|A100|GPUs?|CUDA)\b")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The page's paragraphs, lists' points and tables, with the paragraph before each."""
    before = ""
    for part in re.split(r"\n\s*\n|\n(?=- )", text):
        if (part.startswith("#") and "\n" not in part) or part.startswith("    "):
            continue
        yield part, before
        before = part


def unmarked(text: str) -> list[str]:
    """The blocks with a number and without a mark. A table has that of the paragraph before it."""
    return [
        part
        for part, before in blocks(text)
        if re.search(r"\d", NAMES.sub("", part))
        and not MARK.search(part)
        and not (part.startswith("|") and MARK.search(before))
    ]


def test_every_number_of_the_page_is_marked() -> None:
    """Each is measured on a device, compiled for one, or predicted."""
    assert unmarked(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("It takes 5 ms on an H200.", 1),
        ("**Measured**: it takes 5 ms on an H200.", 0),
        ("It was measured.\n\n| a | 5 ms |", 0),
        ("It was measured.\n\nIt is good.\n\n| a | 5 ms |", 1),
        ("It runs on an H100 with Triton 3.6 and Llama-3-8B in float32 (Figures 11 and 12b).", 0),
        ("- it is compiled: 99 KB\n- it spills 8 bytes", 1),
        ("    make gpu  # 2 minutes", 0),
    ],
)
def test_a_number_without_a_mark_is_found(text: str, faults: int) -> None:
    """A mark counts for its paragraph, its point of a list, and the table below it."""
    assert len(unmarked(text)) == faults


def test_no_other_page_states_a_speed_of_a_gpu() -> None:
    """They name the page instead. What the paper measured on its A100 is in the benchmarks."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [
        f"{page.name}: {sentence.strip()[:100]}"
        for page in pages
        if page != PAGE and page.name not in MEASURED_PAGES
        for sentence in re.split(r"(?<=[.:])\s|\n\n|\n\|", page.read_text(encoding="utf-8"))
        if DEVICE.search(sentence) and RATE.search(sentence)
    ]
    assert found == []
