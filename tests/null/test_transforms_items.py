"""The items of a list that is still being generated."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.contract.transforms import closed_items, gives_items, run
from weftline.errors import TransformFailed

LISTS = ("comma_list", "numbered_list", "markdown_list", "line_list", "json")


@pytest.mark.parametrize(
    ("op", "text", "items"),
    [
        ("json", '["a", "b', ["a"]),
        ("json", '["a", {"q": [1, 2]}, [3], 4', ["a", {"q": [1, 2]}, [3]]),
        ("json", "[1, 25", [1]),
        ("json", '```json\n["a", "b"]\n```', ["a", "b"]),
        ("json", '{"a": ["b"', []),
        ("json", '["a" "b"]', ["a"]),
        ("json", "no list", []),
        ("line_list", "a\nb\nc", ["a", "b"]),
        ("line_list", "a\n", []),
        ("comma_list", 'a, "b, c", d', ["a", "b, c"]),
        ("comma_list", 'a, "b, c', ["a"]),
        ("numbered_list", "1. a\n2. b\n3. c", ["a", "b"]),
        ("markdown_list", "- a\n* b\n- c", ["a", "b"]),
    ],
)
def test_closed_items(op: str, text: str, items: list[Any]) -> None:
    """Of a list that is still written, only what a delimiter has ended is known."""
    assert closed_items([{"op": op}], text) == items


SUBS = '{"items": [{"q": "a"}, {"q": [1, {"b": "]"}]}'


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (SUBS, [{"q": "a"}, {"q": [1, {"b": "]"}]}]),
        (SUBS[:-1], [{"q": "a"}]),
        (f"Here:\n```json\n{SUBS}", [{"q": "a"}, {"q": [1, {"b": "]"}]}]),
        ('[{"q": 1}, {"q": 2', [{"q": 1}]),
        ('{"others": [{"q": 1}', []),
        ('{"first": {}, "items": [{"q": 1}', []),
        ("items:\n- {q: 1}\n", []),
        ('{"items": ["a", "b"', []),
    ],
)
def test_closed_items_of_an_entry(text: str, items: list[Any]) -> None:
    """The objects of LlamaIndex's sub-questions are known one by one."""
    assert closed_items([{"op": "json_or_yaml", "key": "items"}], text) == items


def test_which_transforms_give_items() -> None:
    """Transforms that make the list last do. A path after it, and a very long text, give none."""
    assert all(gives_items([{"op": op}]) for op in LISTS)
    assert gives_items([{"op": "string"}, {"op": "line_list"}])
    assert not gives_items([]) and not gives_items([{"op": "strip"}, {"op": "line_list"}])
    assert not gives_items([{"op": "json"}, {"op": "path", "keys": ["a"]}])
    assert closed_items([{"op": "strip"}], "a\nb\n") == []
    assert closed_items([{"op": "line_list"}], "a\n" * 40_000) == [], "a long text waits"


words = st.text(st.sampled_from('ab1 ,."-*\n'), max_size=40)


@given(st.sampled_from(LISTS[:4]), words, st.integers(0, 40))
def test_closed_items_are_the_first_of_the_whole_list(op: str, text: str, cut: int) -> None:
    """Whatever follows. A comma list is the exception that a broken row makes."""
    spec = [{"op": op}]
    early = closed_items(spec, text[:cut])
    whole = run(spec, text)
    assert whole[: len(early)] == early or (op == "comma_list" and '"' in text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.lists(values, max_size=4), st.integers(0, 60), st.booleans())
def test_closed_values_of_json(items: list[Any], cut: int, fenced: bool) -> None:
    """The items found in a part of the text are the first items of the whole list."""
    text = json.dumps(items, ensure_ascii=False)
    if fenced:
        text = f"Here:\n```json\n{text}\n```"
    early = closed_items([{"op": "json"}], text[:cut])
    assert items[: len(early)] == early
    with contextlib.suppress(TransformFailed):  # what JSON cannot carry
        assert run([{"op": "json"}], text) == items
