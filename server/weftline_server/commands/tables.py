"""Tables in a terminal: aligned columns of text that cannot steer the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> str:
    """The rows below their heads, one a line. Columns named in `right` are aligned to the right."""
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in (heads, *rows):
        cells = [
            f"{cell:>{width}}" if head in right else f"{cell:<{width}}"
            for head, cell, width in zip(heads, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def printable(text: str) -> str:
    """`text` with every control character escaped: a model's text must not steer the terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
