"""The benchmark of a busy tool beside a text, on a server of its own."""

from __future__ import annotations

import pytest

from bench.micro import tools_beside
from bench.micro.tools_beside import Setting


def test_a_text_is_measured_alone_and_beside_a_busy_tool() -> None:
    """Ten words a turn, from a null engine. A tool that ends before the text is an error."""
    rows = tools_beside.table(Setting(seconds=2.0), 1, tokens=10).splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == [
        "| alone",
        "| beside a busy tool",
        "| moved by",
    ]
    assert rows[2].count(" ms") == rows[3].count(" ms") == 2
    with pytest.raises(SystemExit, match="raise --seconds"):
        tools_beside.table(Setting(niceness=5, seconds=0.01, apart=True), 1, tokens=60)
