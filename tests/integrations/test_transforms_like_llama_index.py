"""Transforms against LlamaIndex's parsers: equal values and failures on thousands of texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import MockLLM
from llama_index.core.output_parsers import PydanticOutputParser, SelectionOutputParser
from llama_index.core.output_parsers.base import OutputParserException
from llama_index.core.output_parsers.utils import parse_json_markdown
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from tests.integrations.differential import mutated, named, outcomes
from weftline.contract.transforms import closed_items, parse, run
from weftline.contract.transforms.base import NO_JSON
from weftline.contract.transforms.yaml_text import MAX_YAML_CHARS, NO_YAML
from weftline.errors import InvalidRequest, TransformFailed

SEEDS = (
    'Here it is:\n```json\n{"items": [{"sub_question": "Where?", "tool_name": "rivers"}]}\n```\n',
    '```json\n[{"choice": 1, "reason": "it fits"}, {"choice": 2, "reason": "so does it"},]\n```',
    '{"query": "the Tiber", "filters": [], "top_k": 3}',
    "[{choice: 1, reason: 'unquoted, as YAML has it'}]",
    "{items: [{sub_question: a, tool_name: b}, {sub_question: c}]}",
    '{"a": {"b": [1, 2.5, -3e2, true, null]}, "c": "\\u00e9 \\" \\n"}',
    "[2023-07-04, 0x1f, 1_000, ~, yes, .5, 12:30]",
    "{1: a, null: b, [c]: d}",
    "[&x {a: 1}, *x, !!binary aGk=]",
    "no brackets at all",
    "} upside down {",
    '{"a": 1e999, "b": NaN}',
    "",
)

# Longer texts of objects alone, because edits leave many of these whole.
OBJECTS = (
    'The answer:\n{"name": "Tiber", "length_km": 405, "towns": ["Rome", "Ostia"]}\nThat is all.',
    '```json\n{"a": {"b": {"c": ["d", {"e": null}]}}, "f": "many words } and { brackets"}\n```',
    '{"text": "a long text that holds nothing but words, and then some more words", "n": 1}',
    "{}",
    *SEEDS,
)
NO_DATA = [("failure", f"ValueError: {reason}") for reason in (NO_JSON, NO_YAML)]

Json = RootModel[dict[str, Any]]


outcome = outcomes(
    {
        OutputParserException: str,
        ValidationError: lambda failure: str(failure.errors()[0]["type"]),
        **dict.fromkeys((ValueError, TypeError, AttributeError, KeyError, IndexError), named),
    }
)


class Reading(SelectionOutputParser):
    """LlamaIndex's parser of selections, up to the step that builds its answers."""

    def _format_output(self, output: list[Any]) -> list[Any]:
        self.read = output
        return []


def unfenced(text: str) -> list[Any]:
    """Return the list from which it builds them."""
    parser = Reading()
    parser.parse(text)
    return parser.read


def as_list(text: str) -> Any:
    """Return the transform's result, as a list where LlamaIndex makes one."""
    made = run([{"op": "json_or_yaml", "fenced": False}], text)
    if isinstance(made, dict):
        return [made]
    if not isinstance(made, list):
        raise ValueError(f"Failed to convert output to JSON: {text!r}")
    return made


Reader = Callable[[str], Any]
READERS: dict[str, tuple[Reader, Reader]] = {
    "fenced": (partial(run, [{"op": "json_or_yaml"}]), parse_json_markdown),
    "unfenced": (as_list, unfenced),
}


@pytest.mark.parametrize("name", READERS)
def test_json_or_yaml(name: str) -> None:
    """The server reads what LlamaIndex reads as JSON or YAML. It refuses values that JSON lacks."""
    ours, read = READERS[name]
    values = failures = refused = 0
    for text in mutated(seed=len(name), count=4000, seeds=SEEDS):
        expected = outcome(partial(read, text))
        got = outcome(partial(ours, text))
        if got in NO_DATA:
            refused += 1
            assert not _travels(read, text), text
        else:
            assert got == expected, text
        values += got[0] == "value"
        failures += got[0] == "failure"
    assert values > 500 and failures > 1000 and refused > 100


def _travels(read: Callable[[str], Any], text: str) -> bool:
    """Whether a JSON body carries the value unchanged to the other side."""
    try:
        value = read(text)
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def test_json_object() -> None:
    """PydanticOutputParser takes the text between the outermost braces, and pydantic reads it."""
    parser = PydanticOutputParser(Json)
    values = failures = 0
    for text in mutated(seed=3, count=6000, seeds=OBJECTS, edits=2):
        expected = outcome(lambda text=text: parser.parse(text).root)  # type: ignore[misc]
        got = outcome(partial(run, [{"op": "json_object"}], text))
        if got in NO_DATA:
            assert not _travels(lambda text: parser.parse(text).root, text), text
        elif got[1].startswith("Invalid JSON"):
            assert expected == ("failure", "json_invalid"), text
        elif got[0] == "failure":
            assert expected == ("failure", f"ValueError: {got[1]}"), text
        else:
            assert got == expected, text
        values += got[0] == "value"
        failures += got[0] == "failure"
    assert values > 1000 and failures > 1000


class Stop(BaseModel):
    """An object with every type of JSON."""

    model_config = ConfigDict(frozen=True)
    name: str
    km: float
    lines: list[int]
    inner: dict[str, bool | None]


def test_json_text() -> None:
    """The transforms make pydantic's dump of an object from the text it was read from."""
    for name in ('é\u2028\x00"\\/', "", "plain"):
        for km in (0.1, 3.0, -2.5e-5, 123456789.125):
            stop = Stop(name=name, km=km, lines=[1, -2], inner={"a": True, "b": None})
            text = "So: " + json.dumps(stop.model_dump(), indent=2) + "."
            specs: list[dict[str, Any]] = [{"op": "json_object"}, {"op": "json_text"}]
            same = json.loads(run(specs, text)) == json.loads(stop.model_dump_json())
            assert same and Stop.model_validate_json(run(specs, text)) == stop
            if "e" not in repr(km):  # pydantic writes 2.5e-5 where Python writes 2.5e-05
                assert run(specs, text) == stop.model_dump_json()


def test_the_transform_of_selections_gives_the_parsers_list() -> None:
    """The transform gives the list from which the parser of selections builds its answers."""
    text = 'I choose\n[{"choice": 2, "reason": "it knows"}, {"choice": 1, "reason": "so"},]'
    answers = SelectionOutputParser().parse(text).parsed_output
    made = run([{"op": "json_or_yaml", "fenced": False}], text)
    assert [(answer.choice, answer.reason) for answer in answers] == [
        (found["choice"], found["reason"]) for found in made
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[2023-07-04,]",
        "{1: a}",
        "[&a [b,b,b,b,b,b,b,b,b,b,b], &c [*a,*a,*a,*a,*a], *c, *c]",
        "[&a [*a],]",
        "[!!set {a, b},]",
        "[" * 60 + "{a: " * 80 + "}" * 80 + "]" * 60,
    ],
)
def test_yaml_values_that_json_lacks(text: str) -> None:
    """A date, a number as a key, anchors that multiply or contain themselves, a set,
    deep nesting.
    """
    with pytest.raises(TransformFailed, match="cannot be sent on; ask the model for plain JSON"):
        run([{"op": "json_or_yaml"}], text)


def test_bounds() -> None:
    """YAML is slow to read, so only an answer of bounded length is read."""
    long = "[" + "a," * (MAX_YAML_CHARS // 2) + "]"
    with pytest.raises(TransformFailed, match="reads at most 32768 characters as YAML"):
        run([{"op": "json_or_yaml"}], long)
    assert len(run([{"op": "json_or_yaml"}], long.replace("a", "1").replace(",]", "]"))) > 16000
    with pytest.raises(InvalidRequest, match="'fenced' is true or false"):
        parse({"op": "json_or_yaml", "fenced": "yes"})


WORDS = st.text("ab {}:\n\u00e9", max_size=6)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2) | WORDS
NODES = st.builds(
    TextNode,
    text=WORDS,
    metadata=st.dictionaries(st.sampled_from("abc"), VALUES | st.lists(VALUES, max_size=2)),
    excluded_llm_metadata_keys=st.lists(st.sampled_from("abc"), max_size=1),
    excluded_embed_metadata_keys=st.lists(st.sampled_from("abc"), max_size=1),
    metadata_template=st.sampled_from(["{key}: {value}", "<{key}>", "{value}{value}"]),
    metadata_seperator=st.sampled_from(["\n", "; "]),
    text_template=st.sampled_from(["{metadata_str}\n\n{content}", "[{content}|{metadata_str}]"]),
)


@given(st.lists(NODES, max_size=3))
def test_the_texts_of_nodes(nodes: list[TextNode]) -> None:
    """As a synthesizer packs them, from what LlamaIndex's vector stores keep of nodes."""
    hits = [
        {"text": node.text, "metadata": node_to_metadata_dict(node, remove_text=True)}
        for node in nodes
    ]
    shown = [node.get_content(MetadataMode.LLM) for node in nodes]
    packed = "\n\n".join(text.strip() for text in shown if text.strip())
    if not packed:
        with pytest.raises(TransformFailed, match="found no text"):
            run([{"op": "node_texts"}], hits)
    else:
        assert run([{"op": "node_texts"}], hits) == packed
    items = run([{"op": "node_items"}], hits)
    assert [item["text"] for item in items] == [
        node.get_content(MetadataMode.EMBED) for node in nodes
    ]
    for at, text in enumerate(shown):
        one: list[dict[str, Any]] = [{"op": "path", "keys": [at]}, {"op": "node_texts"}]
        if text.strip():
            assert run(one, hits) == run(one, items) == text.strip()


LINES = st.text("ab `\n\t\u2028\r", max_size=24)


@given(LINES, st.integers(1, 4), st.sampled_from(["a", " a", "b"]), st.integers(0, 24))
def test_the_queries_of_a_fusion(text: str, most: int, query: str, cut: int) -> None:
    """Those that QueryFusionRetriever asks, each once, and the query itself before them. What is
    known early is what is there at the end."""
    retriever = QueryFusionRetriever([], llm=MockLLM(), num_queries=most + 1, retriever_weights=[1])
    object.__setattr__(retriever, "_llm", Says(text=text))
    asked = [bundle.query_str for bundle in retriever._get_queries(query)]
    spec = [{"op": "query_list", "most": most}]
    assert run(spec, text) == list(dict.fromkeys(asked))
    whole = [{**spec[0], "first": query}]
    assert run(whole, text) == list(dict.fromkeys([query, *asked]))
    early = closed_items(whole, text[:cut])
    assert early == run(whole, text)[: len(early)] and early[:1] == [query]


@dataclass
class Says:
    """A model that says this."""

    text: str

    def complete(self, prompt: str) -> Says:
        return self


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"_node_content": "{", "_node_type": "TextNode"}, "cannot read"),
        ({"_node_content": "[]", "_node_type": "TextNode"}, "nodes of LlamaIndex"),
        ({"_node_content": '{"metadata": 1}', "_node_type": "TextNode"}, "nodes of LlamaIndex"),
        ({"_node_content": "{}", "_node_type": "ImageNode"}, "class TextNode"),
        (
            {"_node_content": '{"metadata": {"a": 1}, "metadata_template": "{key.__class__}"}'},
            "plain fields",
        ),
    ],
)
def test_a_node_that_cannot_be_shown(metadata: dict[str, Any], says: str) -> None:
    """Templates are data of a tenant: none of them is evaluated."""
    with pytest.raises(TransformFailed, match=says):
        run([{"op": "node_texts"}], [{"text": "x", "metadata": metadata}])
