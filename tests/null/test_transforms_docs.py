"""Every row of docs/transforms.md is run."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from weftline.contract.transforms import OPS, run
from weftline.contract.transforms.patterns import translate
from weftline.errors import InvalidRequest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "transforms.md").read_text()
_CODE = r"`(.+?)` \| "
ROWS = re.findall(rf"^\| `(\{{\"op\".+?)` \| {_CODE}{_CODE}", PAGE, re.M)
REFUSED = re.findall(r"^\| [^|`]*(?:`[^`]+`[^|`]*)* \| `([^`]+)` \|$", PAGE, re.M)


@pytest.mark.parametrize(("spec", "value", "expected"), ROWS)
def test_each_row_is_true(spec: str, value: str, expected: str) -> None:
    """The three cells of a row are JSON as it is on the wire."""
    made = run([json.loads(spec)], json.loads(value))
    assert json.dumps(made) == json.dumps(json.loads(expected))


def test_every_transform_has_a_row() -> None:
    """Every option of a transform has a row too."""
    shown: dict[str, set[str]] = {}
    for spec, _, _ in ROWS:
        options = json.loads(spec)
        shown.setdefault(options.pop("op"), set()).update(options)
    has = {op: {field.name for field in dataclasses.fields(cls)} for op, cls in OPS.items()}
    assert shown == has


@pytest.mark.parametrize("pattern", REFUSED)
def test_refused_examples_are_refused(pattern: str) -> None:
    """Each example of the table is refused."""
    with pytest.raises(InvalidRequest, match="leave the parser to the client"):
        translate(pattern)


def test_the_tables_were_found() -> None:
    """The tests above have rows to run."""
    assert len(ROWS) == 50 and len(REFUSED) == 8
