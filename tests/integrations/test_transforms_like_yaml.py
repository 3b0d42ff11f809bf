"""The transform of YAML against LangChain's parser, on thousands of texts, and its bounds."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel, RootModel

from tests.integrations.differential import mutated, named, outcomes, without_link
from weftline.contract.transforms import parse, run
from weftline.contract.transforms.yaml_text import MAX_YAML_CHARS, NO_YAML, TOO_MUCH
from weftline.errors import InvalidRequest, TransformFailed

classic = pytest.importorskip("langchain_classic.output_parsers")

SEEDS = (
    "name: Ann\nage: 7\ntags: [a, 'b: c', \"d\\n\"]\ninner: {x: 1.5, y: ~, z: yes}\n",
    "Here it is:\n```yaml\nname: Ann\nlines: |\n  one\n  two\n```\nThat is all.",
    "```yml\n- a\n- b: 1\n  c: 2\n-\n  - deep\n```\n```yaml\nd: 1\n```",
    "```\na: >-\n  folded\n  text\n",
    "a ```yaml\nb: 1\n```",
    "born: 1990-01-01\nat: 2001-12-14t21:59:43.10-05:00\n1: x\n2020-02-02: y\n!!set {a, b}: z",
    "a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\n",
    "x: 0x1f\ny: 1_000\nz: 12:30:45\nw: .inf\nv: !!binary aGk=\nu: !!omap [a: 1, b: 2]",
    "a: b: c",
    "month: 2020-13-45",
    "--- one\n--- two",
    "\tx: 1",
    "!!python/object/apply:os.system ['true']",
    "",
)


class Thing(RootModel[Any]):
    """Any value that was read."""


class Person(BaseModel):
    """An object with a few fields."""

    name: str
    age: int = 0


outcome = outcomes({OutputParserException: without_link, Exception: named})


@pytest.mark.parametrize("model", [Thing, Person])
def test_same_object_or_same_failure(model: type[BaseModel]) -> None:
    """On four thousand texts, the client makes the parser's object from each value that the server
    accepts.
    """
    parser = classic.YamlOutputParser(pydantic_object=model)
    spec = {"op": "yaml", "class_name": model.__name__}
    values = failures = 0
    for text in mutated(seed=5, count=4000, seeds=SEEDS, edits=3):
        expected = outcome(partial(parser.parse, text))
        got = outcome(lambda text=text: parser.parse(run([spec], text)))  # type: ignore[misc]
        assert got == expected, text
        values += expected[0] == "value"
        failures += expected[0] == "failure"
    assert values > 100 and failures > 1000


def test_data_of_its_own() -> None:
    """Without a class the value is the parser's data, if a JSON body can carry it."""
    parser = classic.YamlOutputParser(pydantic_object=Thing)
    refused = values = 0
    for text in mutated(seed=6, count=4000, seeds=SEEDS, edits=3):
        got = outcome(partial(run, [{"op": "yaml"}], text))
        expected = outcome(lambda text=text: parser.parse(text).root)  # type: ignore[misc]
        if expected[0] == "failure":
            assert got[0] == "failure"
            assert got[1].partition("from")[2] == expected[1].partition("from")[2]
        elif got[0] == "failure":
            refused += 1
            assert not _travels(parser.parse(text).root), text
        else:
            values += 1
            assert got == expected, text
    assert values > 1000 and refused > 50


def _travels(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


BOMB = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
    f"{one}: &{one} [{','.join(['*' + zero] * 8)}]\n"
    for zero, one in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [BOMB, "&a [*a]", "[" * 140 + "]" * 140])
def test_bombs(text: str) -> None:
    """Anchors that multiply or contain themselves, and deep nesting, are refused in the server."""
    for spec, reason in (
        ({"op": "yaml"}, NO_YAML),
        ({"op": "yaml", "class_name": "Thing"}, TOO_MUCH),
    ):
        with pytest.raises(TransformFailed) as failure:
            run([spec], text)
        assert failure.value.message == f"ValueError: {reason}"


def test_bounds() -> None:
    """Only an answer of bounded length is read. A class's name is a short text."""
    long = "[" + "a," * (MAX_YAML_CHARS // 2) + "]"
    with pytest.raises(TransformFailed, match="yaml reads at most 32768 characters as YAML"):
        run([{"op": "yaml"}], long)
    for name in (1, "x" * 2000):
        with pytest.raises(InvalidRequest, match="'class_name' is a text of at most 1024"):
            parse({"op": "yaml", "class_name": name})
