"""What docs/troubleshooting.md quotes is in the code, and the links of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
GENERATED = ("http.md", "python.md")
SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder in ("client", "server", "engine")
    for path in (ROOT / folder).rglob("*.py")
)
# The text that the code prints: neighbouring literals are one, and f-strings lose their prefix.
SAID = re.sub(r'"\s*\n\s*f?"', "", SOURCES)


def quoted() -> list[str]:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", page, re.M)


def test_there_are_sentences() -> None:
    """The next test would pass if no sentence were found."""
    assert len(quoted()) == 13


@pytest.mark.parametrize("sentence", quoted())
def test_a_sentence_is_the_codes(sentence: str) -> None:
    """Each message that the page quotes is a message in the code."""
    assert sentence in SAID


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    return {name if i == 0 else f"{name}-{i}" for name in plain for i in range(plain.count(name))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file of this tree, and to a heading that it has. tests/null/test_reference.py has those
    to the pages that are made with the site.
    """
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        if name in GENERATED:
            continue
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link
