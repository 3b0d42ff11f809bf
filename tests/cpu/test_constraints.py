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

from weftline.contract.protocol import Call, InOut, Placeholder
from weftline.contract.tools import Function, Tool
from weftline_engine.api import FinishReason
from weftline_engine.own.constraints.grammars import MOST_BYTES, TokenGrammars
from weftline_engine.own.embedded.sample.constraint import BadConstraint
from weftline_server.prompt.answer import message_of
from weftline_server.prompt.tool_format import ToolFormat, behind_thoughts, constraint
from weftline_server.prompt.tool_parser import ToolParser

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


def tag(begin: str, schema: Any, end: str) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def calls(*tags: dict[str, Any], once: bool = True) -> dict[str, Any]:
    """One tag, or several with line breaks between them."""
    return {
        "type": "tags_with_separator",
        "separator": "\n",
        "tags": list(tags),
        "at_least_one": True,
        "stop_after_first": once,
    }


def either(*formats: dict[str, Any]) -> dict[str, Any]:
    return {"type": "or", "elements": list(formats)}


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
        {"structural_tag": calls(tag("", EMPTY, "b"))},
        {
            "structural_tag": either(
                calls(tag("a", SCHEMA, "b")), {"type": "json_schema", "json_schema": EMPTY}
            )
        },
    ],
)
def test_an_object_holds_no_space(form: dict[str, Any], grammars: TokenGrammars) -> None:
    """A model that prefers spaces wrote 40 of them in an object that has to be empty, and line
    breaks between the parts of others."""
    assert forms(grammars, form, b"{") == [ord("}")]


def forms(grammars: TokenGrammars, form: dict[str, Any], text: bytes) -> list[int]:
    """The bytes that may follow the text in this form."""
    matcher = grammars.compile(json.dumps(form))
    for byte in text:
        grammars.advance([matcher], [byte])
    [words] = grammars.masks([matcher])
    return [n for n in range(256) if words[n // 32] >> (n % 32) & 1]


def test_json_is_on_one_line(grammars: TokenGrammars) -> None:
    """As json.dumps writes it. A schema that asks for more space gets it."""
    item = {"type": "array", "items": {"type": "boolean"}}
    form = {"json_schema": {"type": "object", "properties": {"a": item}, "required": ["a"]}}
    assert forms(grammars, form, b'{"a"') == [ord(":")]
    assert forms(grammars, form, b'{"a":') == [ord(" ")]
    assert forms(grammars, form, b'{"a": ') == [ord("[")]
    assert forms(grammars, form, b'{"a": [true,') == [ord(" ")]
    assert forms(grammars, form, b'{"a": [true, ') == [ord("f"), ord("t")]
    form["json_schema"]["x-guidance"] = {"whitespace_flexible": False}
    assert forms(grammars, form, b'{"a":') == [ord(" ")]
    form["json_schema"]["x-guidance"] = {"whitespace_flexible": True}
    assert ord(" ") in forms(grammars, form, b'{"a":')


DIGITS = frozenset(b"0123456789")


@pytest.mark.parametrize(
    ("schema", "full", "more"),
    [
        ({"type": "integer"}, "1" * 19, "1" * 18),
        ({"type": ["integer", "null"]}, "1" * 19, "-1"),
        ({"type": "integer", "minimum": 0}, "1" * 19, "9" * 17),
        ({"type": "integer", "format": "uint8"}, "255", "25"),
        ({"type": "integer", "maximum": 99}, "99", "9"),
    ],
)
def test_an_integer_ends(
    schema: dict[str, Any], full: str, more: str, grammars: TokenGrammars
) -> None:
    """It has 64 bits, or those of its format. A model wrote digits until its output was full."""
    form = {"json_schema": {"type": "array", "items": schema}}
    assert not DIGITS.intersection(forms(grammars, form, f"[{full}".encode()))
    assert DIGITS.intersection(forms(grammars, form, f"[{more}".encode()))


def test_many_integers_share_their_bounds(grammars: TokenGrammars) -> None:
    """With bounds of their own, 800 integers were too much for the lexer."""
    names = [f"p{n}" for n in range(800)]
    properties = {name: {"type": "integer", "title": name, "minimum": 0} for name in names}
    form = {"json_schema": {"type": "object", "properties": properties, "required": names}}
    assert DIGITS.intersection(forms(grammars, form, b'{"p0": '))


def test_a_form_behind_thoughts(grammars: TokenGrammars) -> None:
    """The thoughts are free until their mark, and the form holds from there on."""
    wish = json.dumps({"json_schema": EMPTY})
    form = json.loads(behind_thoughts(wish, "", "</think>"))
    assert set(forms(grammars, form, b"Rome {</thi")) > {*b"nkx {}"}
    assert forms(grammars, form, b"Rome {</think>") == sorted(b"\n{")
    assert forms(grammars, form, b"Rome {</think>\n\n{") == [ord("}")]
    marked = json.loads(behind_thoughts(wish, "<think>", "</think>"))
    assert forms(grammars, marked, b"") == [ord("<")]


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
TAG = tag(BEGIN, SCHEMA, END)


def test_tool_calls_are_json_between_their_tags(
    make: Make, generate: Make, tokens_of: Make
) -> None:
    """A forced output is one call. A free output may be text or calls, and each call is whole."""
    forms = [
        calls(TAG),
        either(calls(TAG), {"type": "const_string", "value": "no"}),
        either(calls(TAG), {"type": "regex", "pattern": "a/b[0-9]"}),
        either(calls(TAG), {"type": "json_schema", "json_schema": {"type": "null"}}),
        either(calls(TAG), {"type": "grammar", "grammar": 'root ::= "a/b" [0-9]'}),
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


def test_a_mark_that_is_one_token_is_written_as_one(
    make_bench: Make, generate: Make, tokens_of: Make, grammars: TokenGrammars
) -> None:
    """Qwen3's <tool_call> is an added token that stands for text. A forced call begins with that
    token, and a free answer may call, too."""
    raw = json.loads(grammars._text)
    raw["model"]["vocab"] = {w: id for w, id in raw["model"]["vocab"].items() if id != 255}
    mark = {"id": 255, "content": "<call>", "special": False, "normalized": False}
    raw["added_tokens"] = [{**mark, "single_word": False, "lstrip": False, "rstrip": False}]
    marked = TokenGrammars(json.dumps(raw), 256, [0])
    for form in (calls(TAG), {"type": "triggered_tags", "triggers": ["<call>"], "tags": [TAG]}):
        matcher = marked.compile(json.dumps({"structural_tag": form}))
        rest = [*BEGIN.removeprefix("<call>").encode()]
        assert matcher.allowed([255, *rest]) == 1 + len(rest)
    op = generate("op", tokens_of(1, 9), **options({"structural_tag": calls(TAG)}, max_tokens=200))
    [outcome] = make_bench(grammars=marked).run(op)
    text = bytes(outcome.tokens[1:]).decode()
    assert outcome.failed is None and outcome.tokens[0] == 255
    assert text.startswith(BEGIN.removeprefix("<call>")) and text.endswith(END)


SQL = """
# One statement, or one in brackets.
root ::= statement
statement ::= "SELECT " column ("," column)* " FROM " [a-c]{2}
    | "(" statement ")"
column ::= "id" | "na\\u006De" | [^a-zA-Z()\\x00-\\x20\\U0000007F-\\U0010FFFF]?
"""
LARK = 'start: pair ("," pair)*\npair: /[a-f]/ "=" /[0-9]/'


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (SQL, r"\(*SELECT (id|name|[^a-zA-Z()])?(,(id|name|[^a-zA-Z()])?)* FROM [a-c]{2}\)*"),
        (LARK, r"[a-f]=[0-9](,[a-f]=[0-9])*"),
    ],
    ids=["EBNF", "Lark"],
)
def test_an_output_is_a_sentence_of_its_grammar(
    grammar: str, pattern: str, make: Make, generate: Make, tokens_of: Make
) -> None:
    """Both languages that vLLM's and SGLang's clients write. As many brackets close as open."""
    held = options({"grammar": grammar}, max_tokens=400)
    ops = [generate(f"op{i}", tokens_of(i, 9), **{**held, "seed": i}) for i in range(8)]
    ended = [one for one in make().run(*ops) if one.finished.reason is FinishReason.STOP]
    assert ended
    for outcome in ended:
        assert re.fullmatch(pattern, outcome.text), outcome.text
        assert outcome.text.count("(") == outcome.text.count(")")


def follows(grammars: TokenGrammars, constraint: dict[str, Any], text: str) -> bool:
    """Whether `text` is a whole output under the constraint."""
    matcher = grammars.compile(json.dumps(constraint))
    data = text.encode()
    if matcher.allowed(data) < len(data):
        return False
    for byte in data:
        grammars.advance([matcher], [byte])
    return matcher.matcher.is_accepting()


FREE: dict[str, Any] = {"type": "triggered_tags", "triggers": ["<f"]}
TWO = [tag("<f=x>", SCHEMA, "</f>"), tag("<f=y>", EMPTY, "</f>")]
CALL = '<f=x>{"age": 7, "ok": true}</f>'
SOME_TEXT = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}
JUDGED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({**FREE, "tags": TWO}, ["", "hi", f"hi {CALL} there <f=y>{{}}</f>"], ["<f=z>", "<f=x>{}"]),
    ({**FREE, "tags": TWO, "stop_after_first": True}, ["hi", f"hi {CALL}"], [f"{CALL} more"]),
    ({**FREE, "tags": TWO, "at_least_one": True}, [f"hi {CALL} there"], ["", "hi"]),
    (
        {**FREE, "tags": TWO, "at_least_one": True, "stop_after_first": True},
        [CALL, f"hi {CALL}"],
        ["hi", f"{CALL} there"],
    ),
    (
        {**FREE, "triggers": ["<f=x", "<f=y"], "tags": TWO},
        [f"<f=z> {CALL}", "<f=y>{}</f>"],
        ["<f=y>{1}</f>"],
    ),
    (calls(TWO[1], once=False), ["<f=y>{}</f>", "<f=y>{}</f>\n<f=y>{}</f>"], ["", "x"]),
    ({**calls(TWO[1]), "at_least_one": False}, ["", "<f=y>{}</f>"], ["<f=y>{}</f>\n<f=y>{}</f>"]),
    (
        {
            "type": "sequence",
            "elements": [SOME_TEXT, {"type": "json_schema", "json_schema": EMPTY}],
        },
        ["<t>a\n<b</t>{}", "<t></t>{}"],
        ["{}", "<t>a</t>"],
    ),
    ({"type": "plus", "content": {**SOME_TEXT, "end": ["</t>", "!"]}}, ["<t>a!<t></t>"], [""]),
    ({"type": "star", "content": {"type": "regex", "pattern": "a/\n?"}}, ["", "a/a/\n"], ["a"]),
    (
        {"type": "optional", "content": {"type": "grammar", "grammar": 'root ::= "a" root | "b"'}},
        ["", "b", "aab"],
        ["a", "abb"],
    ),
    ({"type": "const_string", "value": "\u00e4\n\U0001f600"}, ["\u00e4\n\U0001f600"], ["\u00e4"]),
]


@pytest.mark.parametrize(("format", "whole", "wrong"), JUDGED, ids=range(len(JUDGED)))
def test_a_structural_tag_means_what_xgrammar_means(
    format: dict[str, Any], whole: list[str], wrong: list[str], grammars: TokenGrammars
) -> None:
    """Each type of format, with outputs that it allows and others that it does not."""
    held = {"structural_tag": format}
    assert [text for text in whole if not follows(grammars, held, text)] == []
    assert [text for text in wrong if follows(grammars, held, text)] == []


ONE, TWO_CALLS = (
    ", ".join([f'{{"name": "{name}", "arguments": {{}}}}' for name in names])
    for names in ("f", "fg")
)
TOOLS = tuple(Tool(function=Function(name=name)) for name in "fg")


@pytest.mark.parametrize("format", [ToolFormat.MISTRAL, ToolFormat.GRANITE])
@pytest.mark.parametrize("parallel", [None, True, False], ids=["unset", "several", "one"])
def test_a_list_of_forced_calls_has_as_many_as_the_request_allows(
    format: ToolFormat, parallel: bool | None, grammars: TokenGrammars
) -> None:
    """Several calls stand in one list, which the parser of the format reads."""
    asks = Call(
        name="c",
        prompt="{{output:x}}",
        placeholders=(Placeholder(name="x", in_out=InOut.OUT),),
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=parallel,
    )
    held = json.loads(constraint(asks, None, format) or "")
    assert follows(grammars, held, f"[{ONE}]")
    assert follows(grammars, held, f"[{TWO_CALLS}]") == (parallel is not False)
    assert not follows(grammars, held, "[]")
    message = message_of(ToolParser(format, ("f", "g"), "k"), f"[{TWO_CALLS}]")
    assert [one["function"]["name"] for one in message["tool_calls"]] == ["f", "g"]


def test_a_constraint_goes_before_a_bias(make: Make, generate: Make, tokens_of: Make) -> None:
    """A bias chooses among what the constraint allows. A ban of all of it gives way, as does a
    force of a token that is not allowed."""
    ban = tuple((ord(char), -100.0) for char in "yes")
    held = options({"choice": ["yes", "no"]})
    cases: list[tuple[tuple[tuple[int, float], ...], set[str]]] = [
        (ban, {"no"}),
        (((ord("y"), 100.0),), {"yes"}),
        ((*ban, *((ord(char), -100.0) for char in "no")), {"yes", "no"}),
        (((ord("z"), 100.0),), {"yes", "no"}),
    ]
    for at, (biases, allowed) in enumerate(cases):
        ops = [
            generate(f"op{i}", tokens_of(i, 9), **{**held, "seed": i, "logit_bias": biases})
            for i in range(6)
        ]
        found = {outcome.text for outcome in make().run(*ops)}
        assert found <= allowed, at


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

    def probe(logits_RV: Any, ops: list[str]) -> None:
        if "bad" in ops:
            logits_RV[ops.index("bad")] = float("nan")

    words = options({"choice": CHOICES})
    bad, good = make(probe=probe).run(generate("bad", [1], **words), generate("good", [1], **words))
    assert "not finite" in bad.failed.message
    assert good.text in CHOICES


deep: dict[str, Any] = {"type": "any_text"}
for _ in range(70):
    deep = {"type": "star", "content": deep}


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
        ('{"choice": [""]}', "every choice"),
        ('{"structural_tag": {"tags": []}}', "structural_tag.format needs a type"),
        (
            '{"structural_tag": {"type": "sequence", "elements": [{"type": "token", "token": 5}]}}',
            "structural_tag.format.elements.0 the type 'token' with these fields is not served",
        ),
        (
            '{"structural_tag": {"type": "tag", "begin": "a"}}',
            "structural_tag.format needs begin, content and end",
        ),
        (
            json.dumps({"structural_tag": {"type": "any_text", "excludes": ["x"]}}),
            "structural_tag.format.excludes is not served",
        ),
        (
            json.dumps({"structural_tag": {"type": "triggered_tags", "triggers": ["<g"],
                                           "tags": [tag("<f>", SCHEMA, "</f>")]}}),
            "structural_tag.format.tags.0.begin must begin with exactly one of the triggers",
        ),
        (json.dumps({"structural_tag": {"type": "grammar", "grammar": "root ::= a"}}),
         "structural_tag.format.grammar: line 1 of the grammar: there is no rule 'a'"),
        (json.dumps({"structural_tag": deep}), "nests deeper than 64 levels"),
        (json.dumps({"grammar": 'root ::= "a"\n\nroot ::= "b"'}),
         "line 3 of the grammar: rule 'root' is there twice"),
        (json.dumps({"grammar": "start: foo"}), 'unknown name: "foo"'),
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


LOOK = "look-around, including look-ahead and look-behind, is not supported"


@pytest.mark.parametrize(
    ("constraint", "parts"),
    [
        (
            {"json_schema": {"properties": {"name": {"type": "string", "pattern": "^(?=a)b"}}}},
            ["properties.name.pattern: the pattern '^(?=a)b'", LOOK],
        ),
        (
            {"json_schema": {"$defs": {"a": {"items": [{"pattern": "(?<!a)b"}]}},
                             "properties": {"x": {"$ref": "#/$defs/a"}}}},
            ["$defs.a.items.0.pattern: the pattern '(?<!a)b'", LOOK],
        ),
        (  # the first property fails alone, for what it refers to
            {"json_schema": {"properties": {"x": {"$ref": "#/properties/y"},
                                            "y": {"pattern": "(?<!a)b"}}}},
            ["properties.y.pattern: the pattern '(?<!a)b'", LOOK],
        ),
        (
            {"json_schema": {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}},
                                       "b": {"type": "string"}, "c": {"pattern": "(?<!a)b"}},
                             "properties": {"x": {"$ref": "#/$defs/a"},
                                            "y": {"$ref": "#/$defs/c"}}}},
            ["$defs.c.pattern: the pattern '(?<!a)b'", LOOK],
        ),
        ({"json_schema": {"patternProperties": {"a(?!b)": {}}}},
         ["patternProperties: the pattern 'a(?!b)'", LOOK]),
        ({"json_schema": {"pattern": "(?=a)"}}, ["pattern: the pattern '(?=a)'", LOOK]),
        (
            {"json_schema": {"anyOf": [{"type": "null"}, {"items": {"uniqueItems": True}}]}},
            ['anyOf.1.items: Unimplemented keys: ["uniqueItems"]'],
        ),
        ({"json_schema": {"type": "nonsense"}}, ["cannot be followed: Invalid type: nonsense"]),
        ({"regex": "(?=a)b"}, ["the regex '(?=a)b'", LOOK]),
        ({"regex": "a\\1"}, ["the regex 'a", "backreferences are not supported"]),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place_and_the_whole_cause(
    constraint: dict[str, Any], parts: list[str], make: Make, generate: Make
) -> None:
    """The cause stood behind the first line of llguidance's message, where it was cut."""
    failed = make().run(generate("op", [1, 2], constraint=json.dumps(constraint)))[0].failed
    assert (failed.error, failed.param) == ("InvalidRequest", "constraint")
    assert [part for part in parts if part not in failed.message] == [], failed.message
    assert "\n" not in failed.message


def test_the_cause_is_looked_for_once_and_not_for_ever(grammars: TokenGrammars) -> None:
    """A schema of 2,000 parts whose last is wrong: the search ends, and its result is kept."""
    parts = {f"p{at}": {"type": "integer"} for at in range(2000)}
    text = json.dumps({"json_schema": {"properties": {**parts, "z": {"uniqueItems": True}}}})
    with pytest.raises(BadConstraint, match="Unimplemented keys"):
        grammars.compile(text)
    before = grammars._compiled[text]
    with pytest.raises(BadConstraint, match="Unimplemented keys"):
        grammars.compile(text)
    assert grammars._compiled[text] is before


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


def test_a_long_schema_is_followed(grammars: TokenGrammars) -> None:
    """One of 2,000 properties has 150,000 characters. The schemas of many tools have more."""
    many = {f"p{at}": {"type": "string", "description": "a" * 60} for at in range(2000)}
    text = json.dumps({"json_schema": {"type": "object", "properties": many}})
    assert 150_000 < len(text) < MOST_BYTES
    assert not grammars.compile(text).error
