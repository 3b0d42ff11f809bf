"""Fields of pydantic objects, compiled: where JSON holds the same value, they travel as data."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnablePassthrough
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.ahead_chains import SUBMIT, TEXT, Heard, ask, both, run
from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording
from tests.integrations.tiers import outcome


class Author(BaseModel):
    name: str
    city: str | None = None


class Book(BaseModel):
    """A book."""

    title: str = Field(description="its title", min_length=1)
    kind: Literal["novel", "essay"]
    authors: list[Author]
    editor: Author
    tags: list[str]
    note: str | None = None
    tone: str = "calm"
    year: int = 1900
    pages: int = Field(strict=True)
    shelf: str = Field(alias="Shelf")


BOOK: dict[str, Any] = {
    "title": "Über 'Öl' {x}",
    "kind": "novel",
    "authors": [{"name": "Ann"}, {"name": "Bo", "city": "Ulm"}],
    "editor": {"name": "Cy", "city": None},
    "tags": ["it's", "new"],
    "pages": 7,
    "Shelf": "A3",
}
WORDS: dict[str, Any] = {
    "good": BOOK,
    "essay": BOOK | {"kind": "essay", "note": "short", "tone": "warm", "year": "1950"},
    "missing": {name: value for name, value in BOOK.items() if name != "title"},
    "typed": BOOK | {"title": 5},
    "deep": BOOK | {"editor": {"name": None}},
    "other": BOOK | {"tags": "none"},
    "kindless": BOOK | {"kind": "poem"},
    "lonely": BOOK | {"authors": []},
    "list": [BOOK],
}


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    rules = [("Write broken book", '{"title": "x"'), ("Call none book", "I call no tool.")]
    for word, book in WORDS.items():
        call = json.dumps({"name": "Book", "arguments": book})
        rules.append((f"Write {word} book", json.dumps(book)))
        rules.append((f"Call {word} book", f"<tool_call>\n{call}\n</tool_call>"))
    return start_script([*rules, ("", "An answer.")])


@pytest.fixture
def llm(recording: Recording) -> ChatWeftline:
    return ChatWeftline(base_url=recording.url, temperature=0, max_retries=0)


WRITE = ChatPromptTemplate.from_template("Write {word} book")
WAYS: dict[str, Callable[[Any], Any]] = {
    "parser": lambda llm: WRITE | llm | PydanticOutputParser(pydantic_object=Book),
    "json_schema": lambda llm: WRITE | llm.with_structured_output(Book, method="json_schema"),
    "json_mode": lambda llm: WRITE | llm.with_structured_output(Book, method="json_mode"),
    "function_calling": lambda llm: (
        ChatPromptTemplate.from_template("Call {word} book")
        | llm.with_structured_output(Book, method="function_calling")
    ),
}


def one_text(llm: Any, book: Any) -> Any:
    return book | (lambda o: o.title) | ask(llm, "Again: {text}")


def in_a_dict(llm: Any, book: Any) -> Any:
    """Fields of nested objects and of items of lists; those that JSON may leave out."""
    parts = {
        "title": lambda o: o.title,
        "names": lambda o: f"{o.authors[0].name}, {o.editor.name} of {o.editor.city}",
        "tags": lambda o: ", ".join(o.tags),
        "all": lambda o: f"{o.tags} {len(o.tags)} {o.tags[-1]!r}",
        "rest": lambda o: f"{o.note} {o.tone} {o.pages} {o.shelf.lower()}",
    }
    return book | parts | ask(llm, "Again: {title} {names} {tags} {all} {rest}")


def in_a_branch(llm: Any, book: Any) -> Any:
    """The server decides by a field, and the sides read fields."""
    novel = RunnableLambda(lambda o: {"x": o.title}) | ask(llm, "A novel {x}")
    essay = RunnableLambda(lambda o: {"x": o.note, "y": o.tone}) | ask(llm, "An essay {x} {y}")
    way = RunnableBranch((lambda o: o.kind == "novel" and o.pages < 9, novel), essay)
    return book | way | ask(llm, "Again: {text}")


def by_a_function(llm: Any, book: Any) -> Any:
    """A function returns the chain that is to run, by a field of an object in a dict."""
    novel, essay = ask(llm, "A novel {word}"), ask(llm, "An essay {word}")

    def route(v: dict[str, Any]) -> Any:
        return essay if v["book"].kind == "essay" else novel

    return RunnablePassthrough.assign(book=book) | RunnableLambda(route) | ask(llm, "Again: {x}")


def with_the_object(llm: Any, book: Any) -> Any:
    """The object itself is part of the result."""
    again = RunnableLambda(lambda v: v["book"].title) | ask(llm, "Again: {x}")
    return {"book": book} | RunnablePassthrough.assign(again=again)


CHAINS = [one_text, in_a_dict, in_a_branch, by_a_function, with_the_object]
# Each chain with a valid and an invalid object, and each other answer with one of the chains.
CASES = [(make, word) for make in CHAINS for word in ("good", "deep")] + [
    (CHAINS[number % len(CHAINS)], word)
    for number, word in enumerate([word for word in [*WORDS, "broken", "lonely"] if word != "good"])
]
CASES += [(in_a_branch, "essay"), (by_a_function, "essay"), (one_text, "none")]
WITHOUT = ("list", "function_calling")  # the arguments of a tool are no list
CALLS = [(*case, way) for case in CASES for way in WAYS if (case[1], way) != WITHOUT]
# Every other one of them runs in coroutines, and another half with each way.
ASYNC = [(number + number // len(WAYS)) % 2 == 1 for number in range(len(CALLS))]


@pytest.mark.parametrize(
    ("make", "word", "way", "is_async"),
    [(*call, is_async) for call, is_async in zip(CALLS, ASYNC, strict=True)],
)
def test_one_request(
    make: Any, word: str, way: str, llm: ChatWeftline, recording: Recording, is_async: bool
) -> None:
    """The result or exception and the prompts of the plain chain, in one submit."""
    chain = make(llm, WAYS[way](llm))
    plain, ours = Heard(), Heard()
    expected = outcome(partial(run, chain, {"word": word}, is_async, {"callbacks": [plain]}))
    is_valid = word in ("good", "essay") or (word == "lonely" and make is not in_a_dict)
    assert (expected[0] == "value") is is_valid
    recording.requests.clear()
    assert (
        outcome(partial(run, accelerate(chain), {"word": word}, is_async, {"callbacks": [ours]}))
        == expected
    )
    assert [path for verb, path, _ in recording.requests if verb in ("POST", "PUT")] == [SUBMIT]
    assert sorted(ours.said) == sorted(plain.said)


@pytest.mark.parametrize("make", CHAINS)
@pytest.mark.parametrize("way", WAYS)
def test_an_explanation_counts_it_as_one_request(make: Any, way: str) -> None:
    llm = ChatWeftline(base_url="http://127.0.0.1:1")
    explained = accelerate(make(llm, WAYS[way](llm))).explain({"word": "good"})
    assert str(explained.after) == "1 request, 1 in a row"


def test_nothing_that_follows_an_invalid_object_runs(llm: ChatWeftline) -> None:
    """A function of the user gets a field only of an object that is valid."""
    ran: list[Any] = []

    def note(given: Any) -> str:
        ran.append(given)
        return "noted"

    book = WAYS["parser"](llm)
    chain = book | {"title": lambda o: o.title} | RunnableLambda(note) | ask(llm, "Again: {text}")
    for word in ("deep", "good"):
        expected = outcome(partial(chain.invoke, {"word": word}))
        assert outcome(partial(accelerate(chain).invoke, {"word": word})) == expected
    assert ran == [{"title": BOOK["title"]}] * 2


@both
def test_a_fallback_answers_for_an_invalid_object(llm: ChatWeftline, is_async: bool) -> None:
    """The alternative runs, and what else reads the same answer is not lost."""
    again = RunnableLambda(lambda o: o.title) | ask(llm, "Again: {text}")
    read = PydanticOutputParser(pydantic_object=Book) | again
    parts = {
        "first": read.with_fallbacks([RunnableLambda(lambda m: "no book")]),
        "raw": TEXT | ask(llm, "About {text}"),
    }
    chain = WRITE | llm | parts
    for word, first in (("deep", "no book"), ("good", "An answer.")):
        expected = run(chain, {"word": word}, is_async)
        assert expected == {"first": first, "raw": "An answer."}
        assert run(accelerate(chain), {"word": word}, is_async) == expected


class Shouted(BaseModel):
    title: str

    @field_validator("title")
    @classmethod
    def shout(cls, title: str) -> str:
        return title.upper()


class Tidied(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    title: str


class Tidy(BaseModel):
    title: Annotated[str, StringConstraints(to_lower=True)]


class Own(BaseModel):
    title: str

    def __getattribute__(self, name: str) -> Any:
        return "mine" if name == "title" else super().__getattribute__(name)


class Posted(BaseModel):
    title: str

    def model_post_init(self, context: Any) -> None:
        self.title = "posted"


class Made(BaseModel):
    title: str = Field(default_factory=lambda: "made")


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    title: str = Field(alias="Title")


class Number(BaseModel):
    title: int


class Derived(BaseModel):
    name: str

    @property
    def title(self) -> str:
        return f"The {self.name}"


class Inner(BaseModel):
    inner: Shouted
    title: str


class Maybe(BaseModel):
    title: Author | None


CHANGED = [Shouted, Tidied, Tidy, Own, Posted, Made, Named, Number, Derived, Inner, Maybe]


@pytest.mark.parametrize("cls", CHANGED)
def test_a_field_that_pydantic_changes(cls: type[BaseModel], echo_url: str) -> None:
    """The call that was begun with the JSON's value is not the one that LangChain makes.

    So the model makes that call itself, and the result is the plain one.
    """
    llm = ChatWeftline(base_url=echo_url, temperature=0, max_retries=0)
    write = ChatPromptTemplate.from_template("{book}") | llm
    read: Any = PydanticOutputParser(pydantic_object=cls) | (lambda o: f"{o.title}")
    chain = write | read | ask(llm, "Again: {text}")
    for data in ({"title": " One "}, {"Title": "One", "title": "5", "name": "One"}, {"title": 5}):
        given = {"book": f"```json\n{json.dumps(data)}\n```\n"}
        expected = outcome(partial(chain.invoke, given))
        assert outcome(partial(accelerate(chain).invoke, given)) == expected


NUMBERS = st.booleans() | st.integers(-3, 3) | st.floats(-2, 2)
VALUES = NUMBERS | st.none() | st.text("ab5 ", max_size=3)
TEXTS = st.lists(st.text("ab", max_size=2), max_size=2)
LEAVES = VALUES | st.sampled_from(["novel", "essay", "5", "true"]) | TEXTS
PEOPLE = st.fixed_dictionaries({}, optional={"name": st.text("ab") | VALUES, "city": VALUES})
BOOKS = st.fixed_dictionaries(
    {"pages": st.integers() | VALUES},
    optional={
        "title": st.text("ab '{}", min_size=1) | VALUES,
        "kind": st.sampled_from(["novel", "essay"]) | LEAVES,
        "authors": st.lists(PEOPLE, max_size=2) | LEAVES,
        "editor": PEOPLE | LEAVES,
        "tags": st.lists(st.text("ab'"), max_size=3) | LEAVES,
        "note": LEAVES,
        "tone": st.text("ab") | LEAVES,
        "Shelf": st.text("ab") | LEAVES,
        "shelf": LEAVES,
    },
)
# Each field is right in most of the objects, so that many objects are valid.
MOSTLY = st.builds(lambda changed: BOOK | changed, BOOKS) | st.builds(
    lambda name, changed: {**BOOK, name: changed.get(name)}, st.sampled_from(sorted(BOOK)), BOOKS
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(made=MOSTLY)
def test_any_object(made: dict[str, Any], echo_url: str) -> None:
    """Each answer is the echo of its prompt: so are the results, and the exceptions."""
    llm = ChatWeftline(base_url=echo_url, temperature=0, max_retries=0)
    parts = {
        "a": lambda o: f"{o.title} {o.kind} {o.authors[0].name}",
        "b": lambda o: f"{o.editor.city} {o.tags} {o.note} {o.tone}",
        "c": lambda o: f"{o.pages} {o.shelf}" if o.pages > 3 else o.shelf,
    }
    write = ChatPromptTemplate.from_template("{book}") | llm
    book = write | PydanticOutputParser(pydantic_object=Book)
    chain = book | parts | ask(llm, "Again: {a} {b} {c}")
    given = {"book": f"```json\n{json.dumps(made)}\n```\n"}
    expected = outcome(partial(chain.invoke, given))
    assert outcome(partial(accelerate(chain).invoke, given)) == expected
