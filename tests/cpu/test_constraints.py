"""Outputs that are held to a schema, a pattern or a choice, with llguidance on the tiny random
model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from weftline_engine.api import FinishReason
from weftline_engine.embedded.sample.constraint import BadConstraint
from weftline_engine.grammars import MOST_BYTES, TokenGrammars

Make = Callable[..., Any]
SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["age", "ok"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", 'perh\u00e4ps "so"']


TAGS = [{"begin": "a", "schema": SCHEMA, "end": "b"}]


@pytest.fixture
def grammars(tiny_directory: Path) -> TokenGrammars:
    tokenizer = Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))
    # Forced text is tokenised as the tokenizer would do it, so it must read bytes, not characters.
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    return TokenGrammars(tokenizer.to_str(), 256, [0])


@pytest.fixture
def make(make_bench: Make, grammars: TokenGrammars) -> Make:
    return lambda **options: make_bench(grammars=grammars, **options)


def options(constraint: dict[str, Any], **more: Any) -> dict[str, Any]:
    text = json.dumps(constraint)
    return {"constraint": text, "max_tokens": 60, "temperature": 1.0, "seed": 1, **more}


EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": EMPTY},
        {"structural_tag": {"tags": [{"begin": "", "schema": EMPTY, "end": "b"}]}},
        {"structural_tag": {"tags": TAGS, "otherwise": {"json_schema": EMPTY}}},
    ],
)
def test_space_inside_an_object_is_bounded(form: dict[str, Any], grammars: TokenGrammars) -> None:
    """A model that prefers spaces can write 40 of them, and then has to close the object."""
    matcher = grammars.compile(json.dumps(form))
    found = []
    for byte in b"{" + b" " * 40:
        grammars.advance([matcher], [byte])
        [words] = grammars.masks([matcher])
        found.append([n for n in range(256) if words[n // 32] >> (n % 32) & 1])
    assert all(ord(" ") in allowed for allowed in found[:-1])
    assert found[-1] == [ord("}")]


def test_outputs_are_what_their_constraints_allow(
    make: Make, generate: Make, tokens_of: Make
) -> None:
    """Twelve constrained requests run beside a free one, whose tokens are the same as alone."""
    free = generate("free", tokens_of(99, 20))
    alone = make().run(free)[0].tokens
    kinds = [
        options({"json_schema": SCHEMA}),
        options({"regex": "[a-f]{3}-[0-9]{2}"}),
        options({"choice": CHOICES}, min_tokens=40),
        options({"choice": CHOICES}, temperature=0.0, presence_penalty=2.0),
    ]
    ops = [
        generate(f"op{i}", tokens_of(i, 9 + i), **{**kinds[i % 4], "seed": i}) for i in range(12)
    ]
    *found, beside = make().run(*ops, free)
    for i, outcome in enumerate(found):
        assert outcome.finished.reason is FinishReason.STOP
        match i % 4:
            case 0:
                value = json.loads(outcome.text)
                assert value.keys() == {"age", "ok"} and 0 <= value["age"] <= 99
            case 1:
                assert re.fullmatch("[a-f]{3}-[0-9]{2}", outcome.text)
            case _:
                assert outcome.text in CHOICES
    assert beside.tokens == alone
    assert len({outcome.text for outcome in found[1::4]}) == 3


BEGIN, END = '<call>{"name": "f", "arguments": ', "}</call>"
TAG = {"begin": BEGIN, "schema": SCHEMA, "end": END}


def test_tool_calls_are_json_between_their_tags(
    make: Make, generate: Make, tokens_of: Make
) -> None:
    """A forced output is one call. A free output may be text or calls, and each call is whole."""
    once = {"tags": [TAG], "separator": "\n", "stop_after_first": True}
    forms = [
        once,
        {**once, "otherwise": {"choice": ["no"]}},
        {**once, "otherwise": {"regex": "a/b[0-9]"}},
        {**once, "otherwise": {"json_schema": {"type": "null"}}},
    ]
    ops = [
        generate(f"op{i}", tokens_of(i, 9), **options({"structural_tag": form}, max_tokens=200))
        for i, form in enumerate(forms)
    ]
    found = make().run(*ops)
    for outcome in found:
        text = outcome.text
        if text.startswith("<"):
            assert text.startswith(BEGIN) and text.endswith(END)
            assert json.loads(text[len(BEGIN) : -len(END)]).keys() == {"age", "ok"}
        else:
            assert re.fullmatch("no|a/b[0-9]|null", text)
    assert found[0].text.startswith("<")


def test_a_constraint_survives_preemption(make: Make, generate: Make, tokens_of: Make) -> None:
    """The pool holds two of six requests. Each gives the tokens that it gives alone."""
    ops = [
        generate(f"op{i}", tokens_of(i, 20), **options({"regex": "[a-z]{30}"}, seed=i))
        for i in range(6)
    ]
    alone = [make().run(op)[0].text for op in ops]
    small = make(blocks=14, block_size=8, step_tokens=70).run(*ops)
    assert [outcome.text for outcome in small] == alone


def test_nan_under_a_constraint_fails_that_request(make: Make, generate: Make) -> None:
    """The other request of the same step gets its choice."""

    def probe(logits_RV: Tensor, ops: list[str]) -> None:
        if "bad" in ops:
            logits_RV[ops.index("bad")] = float("nan")

    words = options({"choice": CHOICES})
    bad, good = make(probe=probe).run(generate("bad", [1], **words), generate("good", [1], **words))
    assert "not finite" in bad.failed.message
    assert good.text in CHOICES


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ("{", "not JSON"),
        ("[" * 50_000, "not JSON"),
        ("[]", "a constraint is"),
        ('{"regex": "a", "choice": ["b"]}', "a constraint is"),
        ('{"choice": []}', "a constraint is"),
        ('{"choice": ["a", 1]}', "every choice"),
        ('{"regex": "a("}', "cannot be followed"),
        ('{"structural_tag": {"tags": []}}', "needs tags"),
        ('{"structural_tag": {"tags": [{"begin": "a"}]}}', "begin, schema and end"),
        ('{"json_schema": {"type": "nonsense"}}', "cannot be followed"),
        ('{"json_schema": {"$ref": "http://example.com/x"}}', "cannot be followed"),
        (json.dumps({"regex": "a" * MOST_BYTES}), "longer than"),
    ],
)  # fmt: skip
def test_a_bad_constraint_is_refused(
    constraint: str, says: str, make: Make, generate: Make
) -> None:
    """The op fails before its first step, and the message says what a constraint is."""
    failed = make().run(generate("op", [1, 2], constraint=constraint))[0].failed
    assert failed.error == "InvalidRequest"
    assert says in failed.message


def test_without_llguidance_constraints_are_refused(make_bench: Make, generate: Make) -> None:
    """The optional package is not there: the op fails, and the message names the package."""
    failed = make_bench().run(generate("op", [1, 2], **options({"choice": ["a"]})))[0].failed
    assert (failed.error, "llguidance" in failed.message) == ("InvalidRequest", True)


def test_a_tokenizer_that_cannot_be_constrained_refuses_only_constraints() -> None:
    """The tokenizer has more tokens than the model. The error comes with a constraint, not at
    loading.
    """
    words = {"vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", **words}})
    grammars = TokenGrammars(text, 2, [1])
    with pytest.raises(BadConstraint, match="this model's tokenizer cannot follow constraints"):
        grammars.compile('{"choice": ["a"]}')


def test_a_grammar_is_compiled_once(
    grammars: TokenGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 outputs of one request compiled it 128 times between two steps: 15 s. Copies are
    independent of each other.
    """
    compiled: list[str] = []
    compile = grammars._compile

    def counted(text: str) -> Any:
        compiled.append(text)
        return compile(text)

    monkeypatch.setattr(grammars, "_compile", counted)
    form = json.dumps({"choice": ["ab", "ba"]})
    matchers = [grammars.compile(form) for _ in range(128)]
    assert compiled == [form]
    grammars.advance([matchers[0]], [ord("a")])
    before, after = grammars.masks([matchers[1]]), grammars.masks([matchers[0]])
    assert (before != after).any()
