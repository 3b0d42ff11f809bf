"""A hook of mkdocs: a link to a file of the repository outside docs/ becomes that file's name.

The site holds docs/ alone. Such a link is right where the pages are read in the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_OUTWARD = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    return within(markdown, page.file.src_uri)


def within(markdown: str, page: str) -> str:
    """The text of `page`, whose links lead to other pages only. A link to nothing stays, and
    mkdocs refuses it."""

    def named(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        if not target.startswith("../") or not (HERE / target).exists():
            return link[0]
        name = target.removeprefix("../")
        words = link[1].strip("`")
        return f"`{name}`" if words == name else f"{link[1]} (`{name}`)"

    return _OUTWARD.sub(named, markdown)
