"""Parsers that stay in the client, and the page that lists where every parser runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import JsonOutputParser, openai_functions
from langchain_core.output_parsers.base import BaseLLMOutputParser
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.lower.chain_parsers import has_transform
from tests.integrations.differential import mutated

classic = pytest.importorskip("langchain_classic.output_parsers")
criteria = pytest.importorskip("langchain_classic.evaluation.criteria.eval_chain")
comparison = pytest.importorskip("langchain_classic.evaluation.comparison.eval_chain")
scoring = pytest.importorskip("langchain_classic.evaluation.scoring.eval_chain")
react = pytest.importorskip("langchain_classic.agents.output_parsers.react_single_input")

PAGE = (Path(__file__).resolve().parents[2] / "docs/langchain/parsers.md").read_text()
# The modules of LangChain's parsers.
PACKAGES = ("langchain_core.output_parsers", "langchain_classic.output_parsers")
MORE = ("agents", "evaluation", "chains.flare.prompts", "chains.router.llm_router")
ELSEWHERE = (
    "chains.query_constructor.base",
    "retrievers.multi_query",
    "retrievers.document_compressors.chain_extract",
)
TEXT = ChatPromptTemplate.from_template("\n{text}\n")  # The null engine echoes it.


class Point(BaseModel):
    a: int


def classes() -> Iterator[type[Any]]:
    """Every parser of LangChain that can be constructed."""
    for name in (*PACKAGES, *(f"langchain_classic.{name}" for name in (*MORE, *ELSEWHERE))):
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            importlib.import_module(found.name)
    waiting: list[type[Any]] = [BaseLLMOutputParser]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        is_langchains = cls.__module__.startswith(("langchain_core.", "langchain_classic."))
        if is_langchains and not inspect.isabstract(cls) and "[" not in cls.__name__:
            yield cls


def test_the_page_says_of_each_parser_where_it_runs() -> None:
    """A parser that LangChain adds fails this test, and so does a row that is no longer true."""
    rows = re.findall(r"^\| (`.+?) \| (server|client) \|", PAGE, re.M)
    said = {name: where for names, where in rows for name in re.findall(r"`(\w+)`", names)}
    found = {cls.__name__: "server" if has_transform(cls) else "client" for cls in classes()}
    assert found == said


def outcome(act: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the result of `act`, or its exception and the text in it."""
    try:
        value = act()
    except Exception as error:
        return type(error), str(error), getattr(error, "llm_output", None)
    return type(value), value


FUNCTIONS: list[Any] = [
    openai_functions.OutputFunctionsParser(),
    openai_functions.JsonOutputFunctionsParser(),
    openai_functions.JsonKeyOutputFunctionsParser(key_name="a"),
    openai_functions.PydanticOutputFunctionsParser(pydantic_schema=Point),
    openai_functions.PydanticAttrOutputFunctionsParser(pydantic_schema=Point, attr_name="a"),
]


@pytest.mark.parametrize("parser", FUNCTIONS, ids=lambda p: type(p).__name__)
def test_no_answer_calls_a_function(echo_url: str, parser: Any) -> None:
    """Each parser of function calls fails as on any answer without a call. Requesting one fails as
    well.
    """
    llm = ChatWeftline(base_url=echo_url)
    asked = llm.bind(functions=[{"name": "f", "parameters": {}}], function_call={"name": "f"})
    for model, says in ((llm, "Could not parse function call"), (asked, "function_call is not")):
        chain = TEXT | model | parser
        expected = outcome(partial(chain.invoke, {"text": "x"}))
        assert says in expected[1]
        for faster in (accelerate(chain), accelerate(chain)):
            assert outcome(partial(faster.invoke, {"text": "x"})) == expected


LEFT: list[tuple[Any, tuple[str, ...]]] = [
    (criteria.CriteriaResultOutputParser(), ("It is.\nY", "N\nIt is not.", "x")),
    (comparison.PairwiseStringResultOutputParser(), ("So [[A]]", "[[C]]", "[[D]]")),
    (scoring.ScoreStringResultOutputParser(), ("Rating: [[7]]", "[[11]]", "none")),
    (
        react.ReActSingleInputOutputParser(),
        ("Action: search\nAction Input: x", "Final Answer: y", "Action: search"),
    ),
    (
        classic.RegexParser(regex=r"(a)\1", output_keys=["a"]),  # RE2 has no back-references
        ("aa", "ab"),
    ),
]


@pytest.mark.parametrize(("parser", "seeds"), LEFT, ids=lambda p: type(p).__name__)
def test_parsers_of_the_client(echo_url: str, parser: Any, seeds: tuple[str, ...]) -> None:
    """The client runs them on the server's text, with their own values and exceptions."""
    chain = TEXT | ChatWeftline(base_url=echo_url) | parser
    compiled = accelerate(chain)
    named = [step for step in compiled.explain().in_client if type(parser).__name__ in step.step]
    assert len(named) == 1
    for text in mutated(seed=2, count=10, seeds=seeds, edits=2):
        expected = outcome(partial(chain.invoke, {"text": text}))
        assert outcome(partial(compiled.invoke, {"text": text})) == expected, text


def test_a_parser_that_asks_again(echo_url: str) -> None:
    """OutputFixingParser asks its own model to mend the first answer."""
    llm = ChatWeftline(base_url=echo_url)
    parser = classic.OutputFixingParser.from_llm(llm=llm, parser=JsonOutputParser(), max_retries=1)
    chain = TEXT | llm | parser
    for text in ('```json\n{"a": 1}\n```', "no JSON"):
        expected = outcome(partial(chain.invoke, {"text": text}))
        assert outcome(partial(accelerate(chain).invoke, {"text": text})) == expected


@pytest.mark.parametrize("inner", ["[", "name: [. Got: ", "a: b: c. Got: x"])
def test_yaml_that_cannot_be_read(echo_url: str, inner: str) -> None:
    """The exception holds the whole text, like the parser's own."""
    parser = classic.YamlOutputParser(pydantic_object=Point)
    chain = TEXT | ChatWeftline(base_url=echo_url) | parser
    given = {"text": f"Here. Got: it\n```yaml\n{inner}\n```"}
    expected = outcome(partial(chain.invoke, given))
    assert expected[0] is OutputParserException and inner in expected[2]
    assert outcome(partial(accelerate(chain).invoke, given)) == expected
