"""The benchmark of calls reads the leaderboard's schemas, and counts what satisfies them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bench.micro.calls import Asked, is_valid, questions, row

SIDE = {"type": "dict", "properties": {"x": {"type": "float"}, "y": {"type": "any"}}}
FUNCTION = {
    "name": "area",
    "parameters": {
        "type": "dict",
        "properties": {"sides": {"type": "tuple", "items": SIDE}},
        "required": ["sides"],
    },
}


@pytest.fixture
def functions(tmp_path: Path) -> Any:
    """The functions of a wheel with one question."""
    asked = {"id": "1", "question": [[{"role": "user", "content": "?"}]], "function": [FUNCTION]}
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("bfcl_eval/data/BFCL_v4_multiple.json", json.dumps(asked) + "\n")
    [(messages, functions)] = questions(tmp_path / "w.whl", "multiple")
    assert messages == [{"role": "user", "content": "?"}]
    return functions


@pytest.mark.parametrize(
    ("name", "arguments", "is_one"),
    [
        ("area", '{"sides": [{"x": 1.5, "y": "any"}, {}]}', True),
        ("area", '{"sides": [{"x": "1.5"}]}', False),
        ("area", '{"sides": {}}', False),
        ("area", "{}", False),
        ("area", "{", False),
        ("volume", '{"sides": []}', False),
    ],
)
def test_a_call_satisfies_its_schema(
    functions: Any, name: str, arguments: str, is_one: bool
) -> None:
    """Types of Python are those of JSON. Any is no type."""
    assert is_valid({"name": name, "arguments": arguments}, functions) is is_one


def test_a_row_adds_answers_up() -> None:
    asked = [
        Asked(2, 1, False, 0.5, 300, 100),
        Asked(0, 0, True, 0.1, 100, 100),
        Asked(1, 1, False, 0.2, 100, 50),
    ]
    assert row(asked) == {
        "questions": 3, "called": 2, "cut": 1, "calls": 3, "valid": 2, "ms": 200, "cached": 0.5,
    }  # fmt: skip
