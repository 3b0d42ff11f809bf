"""Texts that stand for places of a prompt."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from weftline_engine.remote.llamacpp.delimiters import MOST_EARLIER, Delimiters

TEXT = "Use the documents.\n\nThe naïve owl 🦉 flew.\n\nIt's 12345 o'clock: <|im_end|>\n你好, done!"


def test_a_text_gives_the_tokens_at_its_place(smollm2_directory: Path) -> None:
    """Inside a character of several tokens no text begins, so an earlier place is taken."""
    tokenizer = Tokenizer.from_file(str(smollm2_directory / "tokenizer.json"))
    tokens = tokenizer.encode(TEXT, add_special_tokens=False).ids
    found = [Delimiters(tokenizer).at(tokens, place) for place in range(len(tokens))]
    at = {one[0] for one in found if one is not None}
    for place, one in enumerate(found):
        assert one is not None, tokens[place:]
        assert place - MOST_EARLIER <= one[0] <= place
        ids = tokenizer.encode(one[1], add_special_tokens=False).ids
        assert ids == tokens[one[0] : one[0] + len(ids)] and ids
    owl = tokenizer.encode("🦉", add_special_tokens=False).ids
    assert len(owl) > 1 and len(at) < len(tokens)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(17, 40_000), min_size=1, max_size=40), st.data())
def test_any_tokens_have_a_true_text_or_none(
    smollm2_directory: Path, tokens: list[int], data: st.DataObject
) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_directory / "tokenizer.json"))
    place = data.draw(st.integers(0, len(tokens) - 1))
    if (found := Delimiters(tokenizer).at(tokens, place)) is not None:
        ids = tokenizer.encode(found[1], add_special_tokens=False).ids
        assert tokens[found[0] : found[0] + len(ids)] == ids
