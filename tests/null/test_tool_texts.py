"""Tool calls are read from texts that a real model wrote, however the texts are cut."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.null.tool_texts import FILE, MAX_CHARACTERS, STYLES, read


@dataclass(frozen=True)
class Recorded:
    """One line of the file: a text, and the content and calls that stand in it.

    A call is its name, the JSON text of its arguments, and whether it is sealed.
    """

    style: str
    text: str
    content: str
    calls: list[list[Any]]


TEXTS = [Recorded(**json.loads(line)) for line in FILE.read_text().splitlines()]


@pytest.mark.parametrize("style", STYLES)
def test_every_cut_of_a_recorded_text_is_read_alike(style: str) -> None:
    """Each text is read as a whole, a character at a time, and cut in two at every character. The
    content, the calls, their order and their arguments are always those that are recorded. It takes
    some seconds, because a text is read once for each of its characters.
    """
    for one in TEXTS:
        if one.style != style:
            continue
        whole = read(style, [one.text])
        assert whole.content == one.content, one.text
        calls = [[call.name, call.arguments, call.is_sealed] for call in whole.calls]
        assert calls == one.calls, one.text
        assert read(style, one.text) == whole, one.text
        for cut in range(1, len(one.text)):
            assert read(style, [one.text[:cut], one.text[cut:]]) == whole, (one.text, cut)


def test_the_recorded_texts_are_of_many_kinds() -> None:
    """There are 200 of them, with 100 complete calls and 40 that are not. Each style has complete
    calls, and texts that look like calls and are none.
    """
    assert len(TEXTS) >= 200
    assert max(len(one.text) for one in TEXTS) <= MAX_CHARACTERS
    sealed = [is_sealed for one in TEXTS for *_, is_sealed in one.calls]
    assert sealed.count(True) >= 100 and sealed.count(False) >= 40
    for style in STYLES:
        found = [one.calls for one in TEXTS if one.style == style]
        assert len(found) >= 30 and [] in found, style
        assert sum(is_sealed for calls in found for *_, is_sealed in calls) >= 6, style
