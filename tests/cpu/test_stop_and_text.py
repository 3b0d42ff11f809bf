"""Stop strings across token borders, half characters, and how an output ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from weftline_engine.api import FinishReason
from weftline_engine.bookkeeping.output import StopScanner
from weftline_engine.own.detokenizer import ByteDetokenizer

Make = Callable[..., Any]


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_scanner_cuts_before_the_first_stop(text: str, stops: list[str]) -> None:
    """Letter by letter, it sends the text before the earliest end of a stop string. It never sends
    text that it would have to take back.
    """
    scanner = StopScanner(stops)
    sent = ""
    for letter in text:
        sent += scanner.push(letter)
        assert not any(stop in sent for stop in stops)
        if scanner.stopped:
            break
    sent += scanner.finish()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        first = min(ends)
        longest = max(len(stop) for stop in stops if text[:first].endswith(stop))
        assert sent == text[: first - longest]
    else:
        assert sent == text


def test_the_possible_start_of_a_stop_string_is_held_back() -> None:
    """It is sent when the next text shows that it was none."""
    scanner = StopScanner(["</end>"])
    assert [scanner.push(text) for text in ("a <", "/e", "x", " </en", "d> b")] == [
        "a ",
        "",
        "</ex",
        " ",
        "",
    ]
    assert scanner.stopped


def forced(outputs: dict[str, bytes]) -> Callable[[Any, list[str]], None]:
    """Makes the model generate these bytes, one token each."""
    left = {name: list(text) for name, text in outputs.items()}

    def probe(logits_RV: Any, ops: list[str]) -> None:
        logits_RV.fill(0)
        for row, name in enumerate(ops):
            logits_RV[row, left[name].pop(0)] = 9

    return probe


def test_a_stop_string_across_tokens_ends_the_output(make_bench: Make, generate: Make) -> None:
    """The text ends before it. The usage counts the tokens that wrote it."""
    bench = make_bench(probe=forced({"op": b"one END two", "other": b"one END two"}))
    stopped, whole = bench.run(
        generate("op", [1], max_tokens=11, stop=("END",)), generate("other", [1], max_tokens=11)
    )
    assert stopped.text == "one "
    assert (stopped.finished.reason, len(stopped.tokens)) == (FinishReason.STOP, 7)
    assert whole.text == "one END two"
    assert whole.finished.reason is FinishReason.LENGTH


def test_held_back_text_is_sent_at_the_end(make_bench: Make, generate: Make) -> None:
    """The output ends in the middle of what may have become a stop string."""
    bench = make_bench(probe=forced({"op": b"one EN"}))
    outcome = bench.run(generate("op", [1], max_tokens=6, stop=("END",)))[0]
    assert outcome.text == "one EN"


def test_stop_strings_do_not_count_before_min_tokens(make_bench: Make, generate: Make) -> None:
    """The first full stop is text, and the second one ends the output."""
    bench = make_bench(probe=forced({"op": b"a.b.c."}))
    outcome = bench.run(generate("op", [1], max_tokens=6, min_tokens=3, stop=(".",)))[0]
    assert (outcome.text, len(outcome.tokens)) == ("a.b", 4)


@pytest.mark.parametrize(("ignore", "text", "count"), [(False, "hi", 3), (True, "hi\0there", 8)])
def test_the_end_token_ends_the_output(
    ignore: bool, text: str, count: int, make_bench: Make, generate: Make
) -> None:
    """With ignore_eos it is a token like any other."""
    bench = make_bench(probe=forced({"op": b"hi\0there"}))
    outcome = bench.run(generate("op", [1], max_tokens=8, ignore_eos=ignore))[0]
    assert (outcome.text, len(outcome.tokens)) == (text, count)


def test_the_first_token_is_looked_at_like_any_other(make_bench: Make, generate: Make) -> None:
    """An output may have one token, and its first token may be the end of text or a stop string."""
    said = {"one": b"xy", "end": b"\0y", "stop": b".y"}
    bench = make_bench(probe=forced(said))
    one, end, stop = bench.run(
        generate("one", [1], max_tokens=1),
        generate("end", [1], max_tokens=9, ignore_eos=False),
        generate("stop", [1], max_tokens=9, stop=(".",)),
    )
    assert (one.text, len(one.tokens), one.finished.reason) == ("x", 1, FinishReason.LENGTH)
    assert (end.text, end.finished.reason) == ("", FinishReason.STOP)
    assert (stop.text, stop.finished.reason) == ("", FinishReason.STOP)


def test_a_character_waits_for_its_bytes(make_bench: Make, generate: Make) -> None:
    """A character of three tokens is sent with the last of them."""
    bench = make_bench(probe=forced({"op": "a海b".encode()}))
    bench.submit([generate("op", [1], max_tokens=5)])
    parts = []
    while bench.core.busy:
        parts += [event.text for event in bench.step() if hasattr(event, "text")]
    assert parts == ["a", "", "", "海", "b"]


def test_the_tokenizers_stream_gives_whole_characters(tiny_directory: Any) -> None:
    """Characters have 1 to 4 byte tokens. A character that is cut off reads as U+FFFD
    at the end.
    """
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    text = "née 海 🌊!"
    stream = ByteDetokenizer(tokenizer).stream([65, 66])
    parts = [stream.push([byte]) for byte in text.encode()]
    assert "".join(parts) == text
    assert "🌊" in parts
    assert stream.push([0xF0]) == stream.push([0x9F]) == ""
    assert set(stream.finish()) == {"\ufffd"}
    assert stream.finish() == ""
