"""Vectors as a value: rows, parts, and their JSON."""

from __future__ import annotations

from typing import Any

import pytest

from weftline.contract.vectors import Embedded, Vectors, plain
from weftline_engine.services.retrieval.embedder import TextBackend

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
JSON = {"vectors": "AACAPwAAAEAAAEBAAACAQAAAoEAAAMBA", "dimensions": 2}


def rows(vectors: Vectors) -> list[list[float]]:
    return [row.tolist() for row in vectors.rows()]


def test_the_json_of_vectors() -> None:
    """Base64 of float32 numbers, one row after the other, and the width of a row."""
    made = Vectors.of(ROWS)
    assert (len(made), made.width, made.to_json()) == (3, 2, JSON)
    assert Vectors.from_json({**JSON, "items": []}) == made
    assert rows(made) == ROWS


def test_parts_of_vectors() -> None:
    """A slice has some of the rows, and its parts joined are the whole."""
    made = Vectors.of(ROWS)
    assert rows(made[1:3]) == ROWS[1:] and rows(made[5:6]) == []
    assert Vectors.joined(made[at : at + 1] for at in range(3)) == made
    assert Vectors.joined([]) == Vectors.of([]) == Vectors()
    assert Vectors().to_json() == {"vectors": "", "dimensions": 1}


def test_vectors_have_one_width() -> None:
    for make in (lambda: Vectors.of([[1], [1, 2]]), lambda: Vectors.of([[]])):
        with pytest.raises(ValueError, match="widths"):
            make()
    with pytest.raises(ValueError, match=r"widths \[1, 2\]"):
        Vectors.joined([Vectors.of([[1]]), Vectors.of([[1, 2]])])


def test_the_json_of_embedded_texts() -> None:
    """It is an object with the vectors' JSON in it, also in a list. Other values stay."""
    made = Embedded([{"text": "a"}, {"text": "b"}, {"text": "c"}], Vectors.of(ROWS))
    json = {"items": made.items, "single": False, **JSON}
    assert plain(made) == json and plain([[made], "a"]) == [[json], "a"]
    assert Embedded.from_json(json) == made
    assert Embedded.from_json({**json, "single": True}).single
    same = {"a": [1, [2]]}
    assert plain(same) is same
    with pytest.raises(ValueError, match="more than 2 vectors"):
        Embedded.from_json(json, most=2)
    with pytest.raises(ValueError, match="an object with 'items'"):
        Embedded.from_json(JSON)


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({}, "base64 text"),
        ({**JSON, "dimensions": 0}, "a number in 'dimensions'"),
        ({**JSON, "dimensions": "2"}, "a number in 'dimensions'"),
        ({**JSON, "vectors": "no base64"}, "is not base64 text"),
        ({**JSON, "dimensions": 4}, "holds 6 numbers, which 4 does not divide"),
    ],
)
def test_what_is_no_vector(value: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Vectors.from_json(value)


def test_too_many_rows_are_not_decoded() -> None:
    """The length of the text is enough to refuse them. It is rounded in favour of the value."""
    assert rows(Vectors.from_json(JSON, most=3)) == ROWS
    with pytest.raises(ValueError, match="more than 2 vectors"):
        Vectors.from_json({**JSON, "vectors": JSON["vectors"] + "!"}, most=2)


def test_a_backend_without_lengths_is_not_made() -> None:
    """A backend that cannot count and cut texts fails when it is made, not at its first text."""
    with pytest.raises(TypeError, match="abstract"):
        TextBackend()  # type: ignore[abstract]
