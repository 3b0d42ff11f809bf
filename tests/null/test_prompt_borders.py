"""Where a prompt says that others are likely to part from it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftline.contract.protocol import Call, InOut, Message, Placeholder, Segment
from weftline_engine.api import WORDS, Description, Guesses, Kind, Op
from weftline_engine.remote.border_choice import chosen
from weftline_server.prompt.prompt_borders import LEAST_CHARS, MOST_BORDERS, MOST_CHANGED
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, RenderedMessage, render

TEMPLATE = "{% for m in messages %}[{{ m.role }}]\n{{ m.content }}\n{% endfor %}[assistant]\n"


def prompter(wants: bool = True) -> Prompter:
    """Each word is a token."""
    return Prompter(
        Description(model="m", tokenizer=f"{WORDS}100", chat_template=TEMPLATE, wants_borders=wants)
    )


def parted(prompt: PromptBefore) -> list[str]:
    """What stands before each border, the likeliest first."""
    payload = prompter().payload(prompt)
    words = prompter().text(prompt).split()
    assert payload.tokens is not None and len(payload.tokens) == len(words)
    return [" ".join(words[:border]) for border in payload.borders]


def test_a_template_parts_at_its_last_turn_its_inputs_and_its_blank_lines() -> None:
    """In this order. A border at whitespace stands before it."""
    one = "one" * LEAST_CHARS
    texts = {"context": f"{one}\n\nthree", "question": "who"}
    asked = Message(
        role="user",
        content=(
            Segment(text="Use: "),
            Segment(input="context"),
            Segment(text="\n\nAsk: "),
            Segment(input="question"),
        ),
    )
    output = Placeholder(name="answer", in_out=InOut.OUT)
    call = Call(
        name="rag",
        prompt=(
            Message(role="system", content=(Segment(text="Be kind."),)),
            asked,
            Message(role="assistant", content=(Segment(output="answer"),)),
        ),
        placeholders=(output,),
    )
    before = "[system] Be kind. [user]"
    assert parted(render(call, output, texts)) == [
        before,
        f"{before} Use: {one} three Ask:",
        f"{before} Use: {one} three",
        f"{before} Use:",
        f"{before} Use: {one}",
    ]


def test_a_conversation_parts_at_its_last_turn_and_behind_the_system_prompt() -> None:
    """Then at the turns between, the later ones first. A message that the template changes has no
    border."""
    turns = (
        RenderedMessage("system", "kind"),
        RenderedMessage("user", "a"),
        RenderedMessage("assistant", ""),
        RenderedMessage("assistant", " b \n"),
        RenderedMessage("user", "c"),
        RenderedMessage("user", "d"),
    )
    begin = "[system] kind [user]"
    b = f"{begin} a [assistant] [assistant]"
    c = f"{b} b [user]"
    assert parted(PromptBefore("", turns)) == [f"{c} c [user]", begin, c, b]


def test_a_template_that_changes_messages_has_the_borders_of_the_others() -> None:
    """After some, one after another, no more are looked for: each search reads the whole prompt."""
    changes = Prompter(
        Description(
            model="m",
            tokenizer=f"{WORDS}100",
            chat_template="{% for m in messages %}{{ m.content | replace('a', 'b') }} {% endfor %}",
            wants_borders=True,
        )
    )
    for changed, borders in ((MOST_CHANGED - 1, 1), (MOST_CHANGED, 0)):
        turns = (*[RenderedMessage("user", "a")] * changed, RenderedMessage("user", "c"))
        assert len(changes.payload(PromptBefore("", turns)).borders) == borders


def test_a_text_has_the_borders_of_its_inputs() -> None:
    prompt = PromptBefore("Sum up one two\n\nthree", seams=(7, 14))
    assert parted(prompt) == ["Sum up one two", "Sum up"]


def test_only_engines_that_ask_are_told() -> None:
    prompt = PromptBefore("a\n\nb")
    assert prompter().payload(prompt).borders == (1,)
    assert prompter(wants=False).payload(prompt).borders == ()


def test_a_long_prompt_has_few_borders() -> None:
    """The first ones are spread over it: the last, then halves, quarters and so on."""
    payload = prompter().payload(PromptBefore("\n\n".join(["x" * LEAST_CHARS] * 101)))
    assert payload.borders[:6] == (100, 50, 25, 75, 13, 38)
    assert len(payload.borders) == len(set(payload.borders)) == MOST_BORDERS


def test_of_short_paragraphs_few_count() -> None:
    payload = prompter().payload(PromptBefore("\n\n".join(["x" * 98] * 12)))
    assert payload.borders == (9, 5, 1)


def test_a_border_inside_a_token_stands_before_it() -> None:
    prompt = PromptBefore("Sum upone two", seams=(6,))
    assert parted(prompt) == ["Sum"]


def test_an_op_behind_a_context_counts_from_its_own_tokens() -> None:
    op = Op(
        id="o", kind=Kind.FILL, context="c", tokens=(1, 2, 3, 4, 5), guesses=Guesses(borders=(4, 2))
    )
    rest = op.continuing("p", 3)
    assert (rest.parent, rest.tokens, rest.guesses.borders) == ("p", (4, 5), (1,))
    whole = rest.behind((1, 2, 3))
    assert (whole.tokens, whole.guesses.borders) == (op.tokens, (4,))


@pytest.mark.parametrize(
    ("borders", "taken", "most", "found"),
    [
        ((500, 100, 480, 300), (0,), 9, (100, 300, 500)),
        ((500, 100, 300), (0,), 2, (100, 500)),
        ((500, 50, 300), (0, 590), 9, (300,)),
        ((), (0,), 9, ()),
    ],
)
def test_the_likeliest_borders_are_chosen_apart_from_each_other(
    borders: tuple[int, ...], taken: tuple[int, ...], most: int, found: tuple[int, ...]
) -> None:
    assert chosen(borders, taken, least=100, most=most) == found


@given(st.lists(st.integers(1, 3000)), st.integers(1, 400), st.integers(0, 9))
def test_chosen_borders_are_far_apart(borders: list[int], least: int, most: int) -> None:
    """And each other one is near one of them, if there are not `most` of them."""
    found = chosen(borders, (0,), least=least, most=most)
    places = (0, *found)
    assert all(b - a >= least for a, b in pairwise(places))
    if len(found) < most:
        assert all(
            min(abs(one - place) for place in places) < least or one in found for one in borders
        )
    assert len(found) <= most
