"""The pieces of a text always add up to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate

from langchain_weftline.trace.session_trace import TracedSession
from langchain_weftline.trace.template_pieces import MIN_SEARCHED, by_template, strings_in
from langchain_weftline.trace.templates import Templates
from weftline.kit import Closer, Piece
from weftline.kit.pieces import by_search, text_of

# Few letters, so that values occur inside one another and inside the text.
WORDS = st.text("ab {}<&", max_size=12)


def session() -> TracedSession:
    return TracedSession(Closer(lambda id: None))


@given(WORDS, st.lists(st.tuples(st.just("x"), WORDS), max_size=4))
def test_a_search_adds_up(text: str, values: list[tuple[str, str]]) -> None:
    """However values are found in a text, the pieces joined are the text."""
    assert text_of(by_search(text, values, MIN_SEARCHED)) == text


@given(st.lists(WORDS, max_size=4), WORDS, st.sampled_from([None, "x"]))
def test_a_trace_adds_up(answers: list[str], text: str, name: str | None) -> None:
    """Cut around any answers, long or short, the text is unchanged."""
    traced = session()
    for number, answer in enumerate(answers):
        traced.answered(f"v{number}", answer * 3)
    assert text_of(traced.trace((Piece(text * 4, name),))) == text * 4


PARTS = st.lists(st.text("ab <&", max_size=4) | st.sampled_from(["{x}", "{y}"]), max_size=6)


@pytest.mark.parametrize("form", ["f-string", "mustache"])
@settings(deadline=None)  # The first example takes longer because of imports.
@given(PARTS, WORDS, WORDS)
def test_a_template_adds_up(form: Any, parts: list[str], x: str, y: str) -> None:
    """After a round trip through JSON, a template's pieces are the text that LangChain renders."""
    text = "".join(f"{{{part}}}" if form == "mustache" and "{" in part else part for part in parts)
    template = ChatPromptTemplate.from_messages([("human", text)], template_format=form)
    values = {"x": x, "y": y}
    texts = [str(message.content) for message in template.invoke(values).to_messages()]
    read = Templates().find(template._serialized)
    assert read == template
    found = by_template(read, values, texts)
    assert found is not None and [text_of(pieces) for pieces in found] == texts
    named = [piece.name for piece in found[0] if piece.name is not None]
    given = {"{x}": x, "{y}": y}
    assert named == [part[1] for part in parts if given.get(part)]


def test_the_longest_value_wins_and_short_ones_are_whole_words() -> None:
    """No value is found inside another one's, and `art` is not found in `party`."""
    values = [("a", "art"), ("b", "the art of"), ("c", "of")]
    assert by_search("the art of a party, art", values, MIN_SEARCHED) == (
        Piece("the art of", "b"),
        Piece(" a party, "),
        Piece("art", "a"),
    )


def test_an_earlier_value_is_not_traced_to_an_answer() -> None:
    """A topic that the first answer repeats is not traced to that answer. The whole answer is."""
    run = session()
    run.see(["kangaroos"])
    run.answered("v1", "A joke about kangaroos, and one about wallabies.")
    topic = Piece("kangaroos", "topic")
    assert run.trace((topic,)) == (topic,)
    assert run.trace((Piece("wallabies", "other"),)) == (Piece("wallabies", "other", "v1"),)
    assert run.trace((Piece("wallabies of the template"),))[0].from_var is None


def test_the_paths_of_strings() -> None:
    """Nested inputs are found by path, with plain names on the wire."""
    inputs = {"user": {"name": "Ann"}, "docs": ["one", ("two",)], "n": 3}
    assert list(strings_in(inputs)) == [("user.name", "Ann"), ("docs", "one"), ("docs", "two")]
    assert by_search("Hi Ann", strings_in(inputs), MIN_SEARCHED)[1] == Piece("Ann", "user_name")


@pytest.mark.parametrize(
    "serialized",
    [
        None,
        {},
        {"lc": 1, "type": "not_implemented", "id": ["x"], "repr": "…"},
        {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
        {"lc": 1, "type": "constructor", "id": ["langchain", "Popen"], "kwargs": {}},
        PromptTemplate.from_template("{{x}}", template_format="jinja2")._serialized,
    ],
)
def test_unknown_templates_are_not_built(serialized: Any) -> None:
    """Only listed templates and messages are built. Jinja2 is never rendered again."""
    assert Templates().find(serialized) is None
