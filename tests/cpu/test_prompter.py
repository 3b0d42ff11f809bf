"""A model's tokenizer and template: ids equal those of transformers, and stable prefixes stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from weftline.errors import ContextTooLong, InvalidRequest
from weftline_engine.api import Description
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage

HOLE = "\ue000hole\ue000"

PIECES = st.sampled_from(
    ["word", " a", "  ", "\n", "\n\n", "12345", " 3.14", "naïve", "日本", "🙂", "<|im_", "end|>",
     "'s", "can't", "\t", "….", " the quick brown fox", "x" * 40, "<|im_end|>", "=>", "    pass"]
)  # fmt: skip


@pytest.fixture(scope="module")
def prompter(smollm2_directory: Path) -> Prompter:
    template = (smollm2_directory / "chat_template.jinja").read_text()
    return Prompter(
        Description(
            model="smollm2",
            tokenizer=str(smollm2_directory / "tokenizer.json"),
            chat_template=template,
            context_limit=200,
        )
    )


def test_a_chat_equals_that_of_transformers(prompter: Prompter, smollm2_directory: Path) -> None:
    """The ids equal those of apply_chat_template, for messages with and without a
    system message.
    """
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2_directory)
    for chat in (
        [("user", "Hi  there\n")],
        [("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "Sure? <b>")],
    ):
        messages = [{"role": role, "content": content} for role, content in chat]
        expected = reference.apply_chat_template(messages, add_generation_prompt=True)
        ids = expected["input_ids"] if not isinstance(expected, list) else expected
        assert prompter.payload(
            PromptBefore("", tuple(RenderedMessage(*one) for one in chat))
        ).tokens == tuple(ids)


@pytest.mark.parametrize("begun", ["It", "  It is\n", "It is <|im_end|>", "Sure? <b>"])
def test_a_message_is_continued_as_in_transformers(
    prompter: Prompter, smollm2_directory: Path, begun: str
) -> None:
    """The prompt ends with the beginning of the message, also where an earlier message says the
    same."""
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(smollm2_directory)
    turns = RenderedMessage("user", "Sure? <b>"), RenderedMessage("assistant", begun)
    messages = [{"role": one.role, "content": one.content} for one in turns]
    expected = reference.apply_chat_template(messages, continue_final_message=True, tokenize=False)
    prompt = PromptBefore("", turns[:1], begun=begun)
    assert prompter.text(prompt) == expected
    assert expected.endswith((begun.strip(), begun.lstrip()))


def test_a_template_that_changes_a_message_cannot_continue_it(prompter: Prompter) -> None:
    """Qwen3's leaves the thoughts of earlier answers out."""
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    changed = Prompter(replace(prompter.description, chat_template=template))
    with pytest.raises(InvalidRequest, match="changes the last message, so it cannot be continued"):
        changed.text(PromptBefore("", (RenderedMessage("user", "a"),), begun="x</think>\n\ny"))


def test_a_prompt_beyond_the_context_is_refused(prompter: Prompter) -> None:
    """The message has both numbers."""
    with pytest.raises(ContextTooLong, match=r"is 200 tokens, at .* has 201 tokens"):
        prompter.payload(PromptBefore(" word" * 201))
    with pytest.raises(InvalidRequest, match="is empty"):
        prompter.payload(PromptBefore(""))


def test_an_output_at_the_very_start_follows_the_models_first_token(prompter: Prompter) -> None:
    """The prompt is empty, and a model needs at least one token to continue from."""
    description = replace(prompter.description, bos_token="<|im_start|>")
    assert Prompter(description).payload(PromptBefore("")).tokens == (1,)


def test_a_token_is_shown_as_text_and_bytes(prompter: Prompter) -> None:
    """For a character in parts each token has its bytes. Together the bytes are the text."""
    text = "The caf\u00e9 \U0001f600, 3\u20ac"
    tokens = prompter.payload(PromptBefore(text)).tokens or ()
    shown = [prompter.token(token) for token in tokens]
    assert b"".join(data for _, data in shown).decode() == text
    assert shown[0] == ("The", b"The") and (" caf\u00e9", " caf\u00e9".encode()) in shown
    assert 2 in prompter.special and not prompter.special & set(tokens)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(PIECES, max_size=25), st.lists(PIECES, max_size=6))
def test_later_text_never_changes_filled_ids(
    prompter: Prompter, before: list[str], after: list[str]
) -> None:
    """The ids reported as stable are those of the whole text, whatever follows."""
    known, rest = "".join(before), "".join(after)
    stable = prompter.stable_prefix(PromptBefore(known + HOLE), HOLE)
    whole = prompter.tokenizer.encode(known + rest).ids  # type: ignore[union-attr]
    assert tuple(whole[: len(stable)]) == stable


def test_nearly_all_of_a_long_text_is_stable(prompter: Prompter) -> None:
    """A few words are held back, and in a chat also the template's text behind the value."""
    text = " one two three four five six seven eight" * 4
    stable = prompter.stable_prefix(PromptBefore("", (RenderedMessage("user", text + HOLE),)), HOLE)
    whole = prompter.payload(PromptBefore("", (RenderedMessage("user", text + " nine"),))).tokens
    assert whole is not None and whole[: len(stable)] == stable
    assert len(whole) - len(stable) < 16


@pytest.mark.parametrize(
    ("known", "stable"),
    [
        ("hi<mark>", 2),  # nothing can follow that would be a part of it
        ("hi<mark>and", 2),
        ("hi<open>", 0),  # <open><shut> is a token, too
        ("hi<half|", 0),  # and so is |end>, which may begin with the end of this one
    ],
)
def test_a_mark_is_stable_unless_it_may_be_a_part_of_another(
    known: str, stable: int, smollm2_directory: Path, tmp_path: Path
) -> None:
    """Whatever follows, the ids up to a mark of the template stay."""
    found = Tokenizer.from_file(str(smollm2_directory / "tokenizer.json"))
    found.add_tokens(["<mark>", "<open>", "<open><shut>", "<half|", "|end>"])
    found.save(str(path := tmp_path / "tokenizer.json"))
    made = Prompter(Description(model="m", tokenizer=str(path), chat_template=None))
    assert len(made.stable_prefix(PromptBefore(known + HOLE), HOLE)) == stable
