"""Links of docs/ that lead out of it, as the built site has them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "text", "becomes"),
    [
        ("a.md", "see [make](../Makefile#verbs).", "see make (`Makefile`)."),
        ("a.md", "[`Makefile`](../Makefile)", "`Makefile`"),
        ("langchain/a.md", "[it](../../Makefile)", "it (`Makefile`)"),
        ("langchain/a.md", "[it](../start.md#a) [b](t3.md)", "[it](../start.md#a) [b](t3.md)"),
        ("a.md", "[it](../nothing.md)", "[it](../nothing.md)"),
    ],
)
def test_a_link_out_of_docs_is_a_name(page: str, text: str, becomes: str) -> None:
    """A link within docs/ stays, and so does one to nothing: mkdocs refuses that one."""
    spec = importlib.util.spec_from_file_location("site_links", DOCS / "site_links.py")
    assert spec is not None and spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    assert links.within(text, page) == becomes
