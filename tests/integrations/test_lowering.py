"""Lowering as data: the calls that a chain becomes, and what is known of its result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.lower.drafts import raw_calls
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.lower.symbols import UNKNOWN, AnswerMessage, Ref
from weftline.contract.protocol import Call, Message, Placeholder, Sampling, to_wire
from weftline.kit import Server

LLM = ChatWeftline(base_url="http://there:1", temperature=0)
ASK = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "What of {topic}?")])
TWO: Runnable[Any, Any] = ChatPromptTemplate.from_template("{a} {b}")
SHOW = PromptTemplate.from_template("All: {every}")
TEXT = StrOutputParser()


@dataclass(frozen=True)
class Lowered:
    """The calls of a chain, their server, and the chain's result as far as it is known."""

    calls: tuple[Call, ...]
    result: Any
    server: Server | None


def lowered(chain: Runnable[Any, Any], value: Any) -> Lowered:
    """Lower `chain` with variables called v0, v1 and so on."""
    numbers = count()
    lowering = Lowering(mint=lambda: f"v{next(numbers)}")
    result = lowering.plan(chain, value)
    return Lowered(raw_calls(lowering.calls.drafts), result, lowering.calls.server)


def texts(call: Call) -> list[tuple[str, str]]:
    """Return role and text of a call's messages. Inputs are in braces, with their variable or
    value.
    """
    bound = {p.name: p for p in call.placeholders}

    def show(name: str) -> str:
        placeholder: Placeholder = bound[name]
        what = placeholder.semantic_var_id or repr(placeholder.value)
        return "{" + "|".join([f"{name}={what}", *(t["op"] for t in placeholder.transforms)]) + "}"

    shown = []
    for message in call.prompt:
        assert isinstance(message, Message)
        parts = [s.text or show(s.input or s.output or "") for s in message.content]
        shown.append((message.role, "".join(parts)))
    return shown


def test_a_call_keeps_its_template_apart_from_its_values() -> None:
    """The server sees constant text and named inputs, so calls can share the text."""
    low = lowered(ASK | LLM.bind(stop=["\n"], max_tokens=9) | TEXT, {"topic": "rivers"})
    assert to_wire(low.calls) == [
        {
            "name": "call",
            "prompt": [
                {"role": "system", "content": [{"text": "Be brief."}]},
                {
                    "role": "user",
                    "content": [{"text": "What of "}, {"input": "topic"}, {"text": "?"}],
                },
                {"role": "assistant", "content": [{"output": "out"}]},
            ],
            "placeholders": [
                {"name": "topic", "in_out": "in", "value": "rivers"},
                {
                    "name": "out",
                    "in_out": "out",
                    "semantic_var_id": "v0",
                    "sampling": {"max_tokens": 9, "temperature": 0, "stop": ["\n"]},
                },
            ],
            "separate_reasoning": True,
        }
    ]
    assert low.result == Ref("v0")
    assert low.server is not None
    assert low.server.base_url == "http://there:1"


def test_a_chain_that_ends_in_the_model_gives_a_message() -> None:
    """The message of `prompt | llm` is known by its variable."""
    low = lowered(ASK | LLM, {"topic": "rivers"})
    assert low.result == AnswerMessage("v0")


def test_map_and_reduce() -> None:
    """Each item is a call, and the reduce call reads all of them."""
    reduce = ChatPromptTemplate.from_template("Join:\n{parts}")
    chain = (
        (ASK | LLM | TEXT).map()
        | (lambda answers: {"parts": "\n".join(f"{n}. {a}" for n, a in enumerate(answers))})
        | reduce
        | LLM
        | TEXT
    )
    low = lowered(chain, [{"topic": "rivers"}, {"topic": "lakes"}])
    assert [call.name for call in low.calls] == ["map[0]", "map[1]", "reduce"]
    assert texts(low.calls[2]) == [
        ("user", "Join:\n0. {parts=v0}\n1. {parts_2=v1}"),
        ("assistant", "{out=v2}"),
    ]
    assert low.result == Ref("v2")


def test_parallel_branches_keep_their_names() -> None:
    """The keys of a dict name its calls and build the result."""
    low = lowered({"pro": ASK | LLM | TEXT, "con": ASK | LLM} | RunnablePassthrough(), "rivers")
    assert [call.name for call in low.calls] == ["pro", "con"]
    assert low.result == {"pro": Ref("v0"), "con": AnswerMessage("v1")}


def test_an_item_of_json_is_parsed_in_the_server() -> None:
    """The call that reads the title has the parser at its input."""
    chain = (
        ASK
        | LLM
        | JsonOutputParser()
        | (lambda found: {"title": found["book"]["title"], "again": found["book"]["title"]})
        | PromptTemplate.from_template("{title}, {again}!")
        | LLM
        | TEXT
    )
    low = lowered(chain, "rivers")
    assert texts(low.calls[1])[0] == ("user", "{title=v0|json|path|str}, {title=v0|json|path|str}!")


def test_a_variable_wanted_raw_and_parsed_stays_raw() -> None:
    """One generation serves both readers. The one that parses has the transform at its input."""
    both = ASK | LLM | {"raw": TEXT, "title": JsonOutputParser() | (lambda found: found["title"])}
    low = lowered(both | PromptTemplate.from_template("{title} of {raw}") | LLM | TEXT, "rivers")
    assert [p.transforms for p in low.calls[0].placeholders if p.name == "out"] == [()]
    assert texts(low.calls[1])[0] == ("user", "{title=v0|json|path|str} of {raw=v0}")


def test_lists_show_as_python_shows_them() -> None:
    """A template shows a list by the repr of its items."""
    every = (ASK | LLM | TEXT).map()
    chain = every | (lambda made: {"every": made}) | SHOW | LLM | TEXT
    low = lowered(chain, [{"topic": "a"}, {"topic": "b"}])
    assert texts(low.calls[2])[0] == ("user", "All: [{every=v0|repr}, {every_2=v1|repr}]")


def test_messages_and_history() -> None:
    """Messages of the client are constant text. An answer of the server is a turn of its own."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{question}")]
    )
    first = lowered(prompt | LLM, {"history": [("human", "Hi"), ("ai", "Ho")], "question": "Who?"})
    assert texts(first.calls[0])[:-1] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Ho"),
        ("user", "{question='Who?'}"),
    ]
    chain = (
        RunnablePassthrough.assign(first=ASK | LLM)
        | (lambda x: {"history": [x["first"]], "question": "Why?"})
        | prompt
        | LLM
    )
    second = lowered(chain, {"topic": "rivers"})
    assert texts(second.calls[1])[1] == ("assistant", "{answer=v0}")


def test_names_come_from_the_users_names() -> None:
    """run_name, template names and the place in the chain give names. Equal names get different
    suffixes.
    """
    named = ChatPromptTemplate([("human", "{topic}")], name="ask") | LLM | TEXT
    assert [c.name for c in lowered(named, "x").calls] == ["ask"]
    run = (ASK | LLM | TEXT).with_config(run_name="facts")
    assert [c.name for c in lowered({"a": run} | RunnablePassthrough(), "x").calls] == ["a.facts"]
    twice = named | (lambda text: {"topic": text}) | named
    assert [c.name for c in lowered(twice, "x").calls] == ["ask", "ask 2"]


def test_nested_maps_keep_their_place() -> None:
    """A map inside a map is numbered inside its item."""
    rows = [[{"topic": "a"}], [{"topic": "b"}, {"topic": "c"}]]
    low = lowered((ASK | LLM | TEXT).map().map(), rows)
    assert low.result == [[Ref("v0")], [Ref("v1"), Ref("v2")]]
    assert len({call.name for call in low.calls}) == 3


def test_a_function_of_the_user_is_not_called() -> None:
    """A call that reads what it returns is not known before the run. A call beside it is."""
    called: list[Any] = []
    chain = RunnableParallel(
        a={"topic": RunnableLambda(called.append)} | ASK | LLM | TEXT, b=ASK | LLM | TEXT
    )
    low = lowered(chain, "rivers")
    assert [call.name for call in low.calls] == ["b"]
    assert low.result == {"a": UNKNOWN, "b": Ref("v0")}
    assert called == []


def test_a_branch_is_taken_by_the_clients_value() -> None:
    """Conditions on values of the client are decided before the submit."""
    chain = RunnableBranch(
        (lambda x: x["topic"] == "rivers", ASK | LLM | TEXT), lambda x: "nothing asked"
    )
    assert len(lowered(chain, {"topic": "rivers"}).calls) == 1
    assert lowered(chain, {"topic": "lakes"}).result == "nothing asked"


def test_configurable_models() -> None:
    """The call is sampled with the model that the caller configures."""
    llm = LLM.configurable_fields(max_tokens=ConfigurableField(id="length"))
    chain = (ASK | llm | TEXT).with_config(configurable={"length": 5})
    [call] = lowered(chain, "rivers").calls
    assert call.placeholders[-1].sampling == Sampling(max_tokens=5, temperature=0)


def test_every_sampling_parameter_is_sent_ahead() -> None:
    """Those of OpenAI's API as LangChain has them, the others in the body that extends it. A call
    is found by their hash."""
    more = {"min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": (7,)}
    llm = LLM.bind(presence_penalty=0.5, logit_bias={"3": -100}, extra_body=more)
    [call] = lowered(ASK | llm, "rivers").calls
    expected = Sampling(temperature=0, presence_penalty=0.5, logit_bias={"3": -100}, **more)
    assert {call.placeholders[-1].sampling} == {expected}


def opaque(value: Any) -> Any:
    return str.strip(value)


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (RunnableLambda(opaque), "it calls 'strip', which may do anything"),
        (RunnableLambda(lambda text: text * 2), "it has 'text * 2', which may do anything"),
        (PromptTemplate.from_template("{x!r}") | LLM, "has a conversion or a format"),
        (
            PromptTemplate.from_template("{{{x}}}", template_format="mustache") | LLM,
            "only f-string templates",
        ),
        (
            ChatPromptTemplate.from_messages([MessagesPlaceholder("x")]) | LLM,
            "its messages are not a list",
        ),
        (LLM.bind(logprobs=True), "a graph has no option 'logprobs'"),
        (LLM.bind(tools=[{"type": "function"}]), "a graph cannot describe its tools"),
        (ChatWeftline(base_url="http://elsewhere"), "another server"),
        (ChatWeftline(base_url="http://there:1", cache=True), "it has a cache"),
    ],
)
def test_a_step_that_cannot_be_lowered_is_noted(tail: Runnable[Any, Any], reason: str) -> None:
    """Nothing behind it begins early, and the explanation says why."""
    explained = accelerate(ASK | LLM | TEXT | tail).explain("rivers")
    assert any(reason in note.why for note in explained.in_client)


@pytest.mark.parametrize(
    "chain",
    [ASK | LLM | (lambda m: {"wrong": m.content}) | ASK | LLM, ASK | LLM | TEXT | TWO | LLM],
)
def test_a_prompt_without_its_variable_is_not_sent(chain: Runnable[Any, Any]) -> None:
    """LangChain raises its own error when it comes to that prompt."""
    assert len(lowered(chain, "rivers").calls) == 1
