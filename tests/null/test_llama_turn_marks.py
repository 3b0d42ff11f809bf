"""Where the last message of the user begins in a prompt, by what its template writes."""

from __future__ import annotations

import pytest

from weftline_engine.remote.llamacpp.turn_marks import (
    before_messages,
    begin_of_last,
    common_end,
    probe,
)

FIRST, ANSWER, SECOND = (one["content"] for one in probe()["messages"])


@pytest.mark.parametrize(
    ("rendered", "before"),
    [
        (
            f"<s>system\nBe kind.</s>\n<s>user\n{FIRST}</s>\n<s>assistant\n{ANSWER}</s>\n"
            f"<s>user\n{SECOND}</s>\n<s>assistant\n",
            ("<s>system\nBe kind.</s>\n<s>user", "</s>\n<s>user"),
        ),
        (
            f"<s>[INST] {FIRST} [/INST]{ANSWER}</s>[INST] {SECOND} [/INST]",
            ("<s>[INST]", "</s>[INST]"),
        ),
        (f"{FIRST}{ANSWER}{SECOND}.", ("", "")),
        (f"{FIRST} and {SECOND}", ("", "")),  # without the answer
        ("None", ("", "")),
    ],
)
def test_what_stands_before_both_messages(rendered: str, before: tuple[str, str]) -> None:
    assert before_messages(rendered) == before


@pytest.mark.parametrize(
    ("one", "other", "end"),
    [((1, 2, 3), (9, 2, 3), (2, 3)), ((3,), (2, 3), (3,)), ((1,), (2,), ()), ((), (2,), ())],
)
def test_the_mark_is_what_both_end_with(
    one: tuple[int, ...], other: tuple[int, ...], end: tuple[int, ...]
) -> None:
    assert common_end(one, other) == end


@pytest.mark.parametrize(
    ("tokens", "mark", "begin"),
    [
        ((5, 1, 2, 8, 9, 1, 2, 3), (1, 2), 7),
        ((5, 1, 2, 8, 9, 1, 3), (1, 2), 3),
        ((1, 2), (1, 2), 2),
        ((5, 2), (1, 2), 0),
        ((5, 2), (), 0),
    ],
)
def test_the_message_begins_behind_the_last_mark(
    tokens: tuple[int, ...], mark: tuple[int, ...], begin: int
) -> None:
    assert begin_of_last(tokens, mark) == begin
