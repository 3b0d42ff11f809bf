"""Template text becomes segments. Values never do."""

from __future__ import annotations

import pytest

from weftline.contract.protocol import InOut, Placeholder, Segment
from weftline.contract.template import check_placeholders, from_docstring, parse
from weftline.errors import UnknownPlaceholder


def test_text_inputs_and_outputs_in_their_order() -> None:
    """A template is read once, left to right, and no text of it is lost."""
    assert parse("Write {{input:task}} in {{ input:language }}.\n{{output:code}}") == (
        Segment(text="Write "),
        Segment(input="task"),
        Segment(text=" in "),
        Segment(input="language"),
        Segment(text=".\n"),
        Segment(output="code"),
    )


@pytest.mark.parametrize("slip", ["{{input}}", "{{output: }}", "{{input:1x}}", "{{output:a.b}}"])
def test_a_misspelt_placeholder_is_refused(slip: str) -> None:
    """Text that looks like a placeholder but is none is refused. The message shows the
    right form.
    """
    with pytest.raises(UnknownPlaceholder, match=r"write \{\{input:name\}\}"):
        parse(f"Tell me {slip} please")


def test_other_braces_are_text() -> None:
    """JSON and code in a prompt are text."""
    assert parse('Answer {"a": {"b": 1}} {{x}}') == (Segment(text='Answer {"a": {"b": 1}} {{x}}'),)


def test_a_docstring_loses_its_indentation_only() -> None:
    """Blank lines and the source's indentation are not part of the prompt."""
    segments = from_docstring("Tell a joke\n    about:\n      {{input:topic}}\n    {{output:joke}}")
    assert segments[0] == Segment(text="Tell a joke\nabout:\n  ")


@pytest.mark.parametrize(
    ("text", "names", "param"),
    [
        ("{{input:a}}{{output:y}}", {"y": "out"}, "a"),
        ("{{output:y}}", {"y": "out", "b": "in"}, "b"),
        ("{{input:a}}{{output:y}}", {"a": "out", "y": "out"}, "a"),
        ("{{output:y}}{{output:y}}", {"y": "out"}, "y"),
        ("{{input:y}}{{output:y}}", {"y": "out"}, "y"),
    ],
    ids=["undeclared", "unused", "wrong way", "twice", "both"],
)
def test_prompt_and_placeholders_must_agree(text: str, names: dict[str, str], param: str) -> None:
    """The error names the placeholder at fault."""
    placeholders = tuple(Placeholder(name=n, in_out=InOut(w)) for n, w in names.items())
    with pytest.raises(UnknownPlaceholder) as caught:
        check_placeholders(parse(text), placeholders)
    assert caught.value.param == param
