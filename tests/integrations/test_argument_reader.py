"""Arguments that are read as they stream equal those that jiter, the openai client's reader, reads
from the whole text."""

from __future__ import annotations

import json
import random

import jiter
import pytest

from tests.null.test_tool_stream import random_value
from weftline.contract.arguments import ArgumentReader, MemberText, ObjectMember


def read(pieces: list[str]) -> tuple[dict[str, object], dict[str, str], bool]:
    """The values, the strings' texts, and whether the object closed."""
    reader = ArgumentReader()
    values: dict[str, object] = {}
    texts: dict[str, str] = {}
    for piece in pieces:
        for event in reader.feed(piece):
            match event:
                case ObjectMember(key, value):
                    values[key] = value
                case MemberText(key, text):
                    texts[key] = texts.get(key, "") + text
    assert list(values) == list(reader.value)
    return values, texts, reader.is_closed


@pytest.mark.parametrize("part", range(4))
def test_every_cut_of_1000_values_equals_the_whole_parse(part: int) -> None:
    """250 values here: written with and without escapes, with and without spaces."""
    made = random.Random(part)
    for number in range(250):
        value = {"a": random_value(made), "é\n": random_value(made)}
        space = [(",", ":"), (", ", ": "), (" ,\n", "\t: ")][number % 3]
        text = json.dumps(value, ensure_ascii=number % 2 == 0, separators=space)
        oracle = jiter.from_json(text.encode())
        strings = {key: one for key, one in value.items() if isinstance(one, str) and one}
        assert read(list(text)) == (oracle, strings, True)
        for cut in range(1, len(text)):
            assert read([text[:cut], text[cut:]]) == (oracle, strings, True), (text, cut)


def test_a_broken_object_never_closes() -> None:
    """Where jiter refuses a text with one character dropped or doubled, the reader does not close
    it; where the reader closes it, both read the same."""
    made = random.Random(9)
    closed = refused = 0
    for _ in range(600):
        text = json.dumps({"a": random_value(made), "b": random_value(made)})
        place = made.randrange(len(text))
        damaged = text[:place] + text[place + 1 :] if made.random() < 0.5 else text + text[place]
        values, _, is_closed = read([damaged])
        try:
            oracle = jiter.from_json(damaged.encode(), allow_inf_nan=False)
        except ValueError:
            refused += 1
            assert not is_closed, damaged
        else:
            if is_closed:
                closed += 1
                assert values == oracle, damaged
    assert closed > 50 and refused > 200
