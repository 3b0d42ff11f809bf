"""docs/reliability.md has a row for each fault, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = 79


def test_every_fault_has_a_test() -> None:
    """Each row names at least one."""
    text = (ROOT / "docs/reliability.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| .* \| (.*) \|$", text, re.MULTILINE))
    assert [int(number) for number in rows] == list(range(1, ROWS + 1))
    for number, tests in rows.items():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
        assert named, number
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(), (number, name)
