"""Pure functions over symbolic values give Python's results, or are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda

from langchain_weftline.lower.pure import apply_pure
from langchain_weftline.lower.symbols import (
    AnswerMessage,
    CannotCompile,
    Fragment,
    Hole,
    HoleMessage,
    HoleText,
    Ref,
    item_of,
    settled,
    shown,
)
from weftline.contract import transforms

SEPARATOR = " / "
WORDS = ["a", "b"]


def known(value: Any, values: dict[str, Any]) -> Any:
    """Return `value` once the server's variables have their `values`."""
    if isinstance(value, Ref):
        return transforms.run(value.transforms, values[value.var])
    if isinstance(value, Hole):
        return transforms.run(value.form, known(value.ref, values))
    if isinstance(value, HoleText):
        return "".join(str(known(piece, values)) for piece in value.pieces)
    if isinstance(value, HoleMessage):
        return value.cls(known(HoleText(value.pieces), values))
    if isinstance(value, dict):
        return {key: known(item, values) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(known(item, values) for item in value)
    return value


def documented(x: Any) -> Any:
    """Several statements."""
    first = x["a"]
    rest = [first, x["list"][0]]
    return {"kept": rest, **x["given"]}


@RunnableLambda
def decorated(x: dict[str, Any]) -> str:
    return SEPARATOR.join(x["list"])


def made_with(free: str) -> Callable[[Any], Any]:
    return lambda x: f"{free}{x['a']}{free}"


# There are two on the line, so the right one must be found by its code.
ONE, OTHER = (lambda x: x["a"] + "1", lambda x: x["a"] + "2")

PURE: list[Callable[[Any], Any]] = [
    lambda x: x["a"],
    lambda x: {"new": x["a"], **x["given"]},
    lambda x: f"{x['a']}: {x['json']} {x['list']} {{}} {x['given']!r} {x['list']!r}",
    lambda x: f"{x['given']['n']}|{x['json']['k']}|{x['json']['l'][-1]}",
    lambda x: "<" + x["a"] + ">" + "!",
    lambda x: SEPARATOR.join(x["list"]) + ", ".join(["x", x["a"]]),
    lambda x: ", ".join(x["json"]["l"]),
    lambda x: "\n".join(f"{n + 1}. {item}" for n, item in enumerate(x["list"], 5)),
    lambda x: {name: {"is": item} for name, item in zip(["p", "q"], x["list"], strict=True)},
    lambda x: [(item, len(x["list"])) for item in x["list"][:1]],
    lambda x: str(x["json"]) + str(x["list"]),
    lambda x: x["list"] + [*x["list"], (*x["list"], x["a"])],
    lambda x: dict(given=x["given"], a=x["a"]),  # noqa: C408 (people write it)
    lambda x: x["list"][-1],
    lambda x: x["a"].strip() + x["a"].lower().title() + x["a"].strip("ab"),
    lambda x: [x["a"].split(","), x["a"].splitlines(), x["a"].replace("a", "bb").split(None, 1)],
    lambda x: x["json"].get("k"),
    lambda x: f"{x['json'].get('none', 'given')} {x['given'].get('n')} {x['given'].get('x', 3)}",
    lambda x: x["json"]["l"][0].strip(),
    lambda x: [len(x["a"]), len(x["json"]), f"{len(x['json']['l'])} of {len(x['list'])}"],
    lambda x: [x["a"].startswith("0"), x["a"].count("a"), x["json"]["l"][1].isalpha()],
    lambda x: "%s of %s, 100%%" % (x["a"], x["json"]) + "%s" % x["a"],  # noqa: UP031
    lambda x: "{} {n} {{}} {m}".format(x["a"], n=x["list"][0], m=x["json"]),
    lambda x: "{1} {0}".format(x["a"], 2),  # noqa: UP030
    lambda x: x["a"] if x["given"]["n"] > 0 and not x["given"].get("no") else "other",
    lambda x: x["given"]["s"].upper() + x["a"] if "it" in x["given"]["s"] else x["a"],
    lambda x: [item for number, item in enumerate(x["list"]) if number != 1],
    lambda x: {key: [x["a"], value] for key, value in x["given"].items() if key in ("n", "s")},
    lambda x: [HumanMessage(x["a"]), AIMessage(content="!" + x["a"]), SystemMessage("plain")],
    documented,
    decorated.func,
    made_with("~"),
    ONE,
    OTHER,
]


@pytest.mark.parametrize("function", PURE)
@settings(max_examples=50)
@given(
    text=st.text(),
    item=st.text(),
    number=st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_equal_to_python(
    function: Callable[[Any], Any], text: str, item: str, number: float | None
) -> None:
    """Once the values are known, its symbolic result equals Python's."""
    data = {"k": number, "l": [text, item], "d": {"x": number}}
    symbolic = {
        "a": Ref("a"),
        "list": [Ref("a"), Ref("b")],
        "json": Ref("j", ({"op": "json"},), is_text=False),
        "given": {"n": 1.0, "s": "it's"},
    }
    plain = {"a": text, "list": [text, item], "json": data, "given": symbolic["given"]}
    values = {"a": text, "b": item, "j": json.dumps(data)}
    expected = function(plain)
    got = known(apply_pure(function, symbolic), values)
    assert got == expected
    assert repr(got) == repr(expected)


def test_content_of_a_message() -> None:
    """`message.content` is the variable itself."""
    assert apply_pure(lambda message: message.content, AnswerMessage("v")) == Ref("v")


def with_defaults(x: Any, also: int = 1, more: Any = object) -> Any:
    return x


def loops(x: Any) -> Any:
    for item in x:
        return item
    return x


async def waits(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x["a"].encode(), "'encode', which may do anything"),
        (lambda x: x["a"].split(""), "no empty separator"),
        (lambda x: x["a"].startswith(("b", "c")), "each of startswith's 'args' is a text"),
        (lambda x: "a".replace("a", x["a"]), "'replace' looks at a value of the server"),
        (lambda x: x["given"].items(), "'items', which may do anything"),
        (lambda x: "{:>9}".format(x["a"]), "a field of its format string has a format"),
        (lambda x: "{a.real}".format(a=x["a"]), "no plain field 'a.real'"),
        (lambda x: "%d" % x["a"], "a format other than %s"),  # noqa: UP031
        (
            lambda x: HumanMessage(x["a"], name="n"),
            "HumanMessage has arguments besides its content",
        ),
        (lambda x: print(x), "its name 'print' is not a constant"),
        (lambda x: WORDS + x["list"], "its name 'WORDS' is not a constant"),
        (lambda x: [i for i in x["list"] if i], "a condition looks at a value of the server"),
        (lambda x: [i for i in x["list"] for j in "ab"], "comprehension has several loops"),
        (lambda x: [i + "!" for i in x["a"]], "length of a value of the server"),
        (lambda x: [*x["a"]], "it unpacks something that is not a list"),
        (lambda x: dict(**x["given"]), "it has .dict(.*)., which may do anything"),
        (lambda x: len(x["message"]), "length of a value of the server"),
        (lambda x: f"{x['a']:>9}", "an f-string has a format"),
        (lambda x: x["a"] if x["list"] else "", "a condition looks at a value of the server"),
        (lambda x: x["a"] == "b", "a condition looks at a value of the server"),
        (lambda x: x["given"][x["a"]], "a key or a separator is a value of the server"),
        (lambda x: {x["a"]: 1}, "a key or a separator is a value of the server"),
        (lambda x: x["json"] + "!", "needs a string where it gets a parsed value"),
        (lambda x: f"{[x['a'] + '!']}", "whose quotes depend on its text"),
        (lambda x: x["message"]["k"], "takes item 'k' of a message"),
        (lambda x: not x, "a condition looks at a value of the server"),
        (lambda x: ~x, "it has '~x', which may do anything"),
        (lambda *x: x, "takes more than one plain parameter"),
        (lambda x, config=1: x, "takes more than one plain parameter"),
        (lambda x, y: x, "takes more than one plain parameter"),
        (with_defaults, "a default of its parameters is an object"),
        (waits, "takes more than one plain parameter"),
        (loops, "it has 'for .*:', which may do anything"),
        (str.upper, "not a plain Python function"),
    ],
)
def test_refused(function: Callable[[Any], Any], reason: str) -> None:
    """A function that inspects a server's value, or does more than build one, is not guessed."""
    value = {
        "a": Ref("a"),
        "list": [Ref("a")],
        "json": Ref("j", ({"op": "json"},), is_text=False),
        "given": {},
        "message": AnswerMessage("m"),
    }
    with pytest.raises(CannotCompile, match=reason):
        apply_pure(function, value)


def test_a_missing_key_raises_pythons_error() -> None:
    """The client's own dict lacks the key, so the client raises KeyError."""
    with pytest.raises(KeyError, match="other"):
        apply_pure(lambda x: x["other"], {"a": Ref("a")})


def test_changed_source_is_not_used(tmp_path: Path) -> None:
    """A file that was edited after its import no longer shows what its functions do."""
    path = tmp_path / "edited.py"
    path.write_text("f = lambda x: x['a']\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)  # noqa: S102 (a file as imported)
    assert apply_pure(space["f"], {"a": Ref("a"), "b": Ref("b")}) == Ref("a")
    path.write_text("f = lambda x: x['b']\n")
    with pytest.raises(CannotCompile, match="its source cannot be read"):
        apply_pure(space["f"], {"a": Ref("a"), "b": Ref("b")})


def test_paths_join() -> None:
    """Items of items are one path."""
    deep = item_of(item_of(Ref("v"), "a", "step"), 0, "step")
    assert deep.transforms == ({"op": "path", "keys": ["a", 0]},)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], ""),
        (["a", "b"], "ab"),
        (["", Hole(Ref("v")), ""], Ref("v")),
        (["a", Hole(Ref("v"))], HoleText(("a", Hole(Ref("v"))))),
    ],
)
def test_settled(pieces: list[Fragment], expected: Any) -> None:
    """The result is the simplest value that equals the text: a variable stays that variable."""
    assert settled(pieces) == expected
    assert shown("x", "step") == ("x",)
