"""The provenance of each way to build and run a chain, with one class replaced."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.runnables import (
    ConfigurableField,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from langchain_weftline import ChatWeftline
from tests.integrations.provenance import Watched, result_of

SOUP, RAIN = "Soup is best when it is hot.", "Rain makes the rivers rise."
RULES = [
    ("padded", f"  {SOUP}\n"),
    ("Merge", "Both of them, merged."),
    ("as JSON", '{"title": "The Long Rain", "words": 3}'),
    ("soup", SOUP),
    ("rain", RAIN),
    ("", "Something else."),
]


P = ChatPromptTemplate.from_messages([("system", "You are {role}."), ("human", "Tell of {topic}.")])
X = {"role": "a chef", "topic": "soup"}
Y = {"role": "a poet", "topic": "rain"}
PX = "system: You are {role=a chef}. | user: Tell of {topic=soup}."
PY = "system: You are {role=a poet}. | user: Tell of {topic=rain}."
MERGE = ChatPromptTemplate.from_template("Merge:\n{parts}")
PARTS = {"parts": "\n".join}
SHOTS = [{"q": "1+1", "a": "2"}, {"q": "2+2", "a": "4"}]
TEXT = StrOutputParser()

Program = Callable[[ChatWeftline], Any]


def tell(llm: Any) -> Any:
    return P | llm | TEXT


async def events(llm: ChatWeftline) -> list[Any]:
    return [event["event"] async for event in tell(llm).astream_events(X, version="v2")]


async def astreamed(llm: ChatWeftline) -> list[Any]:
    return [chunk async for chunk in tell(llm).astream(X)]


def joined(parts: list[str]) -> dict[str, str]:
    return {"parts": "\n".join(parts)}


@chain
def by_hand(given: dict[str, Any]) -> Any:
    return given["llm"].invoke(P.invoke(X)).content


def history(llm: ChatWeftline) -> Any:
    kept: dict[str, InMemoryChatMessageHistory] = {}
    talk = ChatPromptTemplate.from_messages(
        [("system", "Be {style}."), MessagesPlaceholder("history"), ("human", "{q}")]
    )
    memory = RunnableWithMessageHistory(
        talk | llm,
        lambda session_id: kept.setdefault(session_id, InMemoryChatMessageHistory()),
        input_messages_key="q",
        history_messages_key="history",
    )
    config: Any = {"configurable": {"session_id": "1"}}
    return [memory.invoke({"style": "terse", "q": q}, config) for q in ("Any soup?", "And now?")]


def fails_once(llm: ChatWeftline) -> Any:
    failures = iter([ValueError("first try")])

    def step(prompt: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return llm.invoke(prompt)

    retried = RunnableLambda(step).with_retry(wait_exponential_jitter=False)
    return (P | retried | TEXT).invoke(X)


def mustache(template: str) -> PromptTemplate:
    return PromptTemplate.from_template(template, template_format="mustache")


FEW = FewShotPromptTemplate(
    examples=SHOTS,
    example_prompt=PromptTemplate.from_template("Q:{q} A:{a}"),
    prefix="Solve.",
    suffix="Q:{sum} A:",
    input_variables=["sum"],
    example_separator=" ",
)
FEW_CHAT = FewShotChatMessagePromptTemplate(
    examples=SHOTS,
    example_prompt=ChatPromptTemplate.from_messages([("human", "{q}"), ("ai", "{a}")]),
)

CASES: dict[str, tuple[Program, list[str]]] = {
    "invoke": (lambda m: tell(m).invoke(X), [PX]),
    "ainvoke": (lambda m: tell(m).ainvoke(X), [PX]),
    "stream": (lambda m: list(tell(m).stream(X)), [PX]),
    "astream": (astreamed, [PX]),
    "batch": (lambda m: tell(m).batch([X, Y]), [PX, PY]),
    "abatch": (lambda m: tell(m).abatch([X, Y]), [PX, PY]),
    "batch as completed": (lambda m: sorted(tell(m).batch_as_completed([X, Y])), [PX, PY]),
    "astream_events": (events, [PX]),
    "transform": (lambda m: list(tell(m).transform(iter([X]))), [PX]),
    "a chain in a dict": (
        lambda m: ({"topic": tell(m), "role": itemgetter("role")} | tell(m)).invoke(X),
        [f"[topic] | {PX}", f"system: You are {{role=a chef}}. | user: Tell of {{topic<={SOUP}}}."],
    ),
    "parallel": (
        lambda m: RunnableParallel(a=tell(m), b=tell(m)).invoke(X),
        [f"[a] | {PX}", f"[b] | {PX}"],
    ),
    "map and reduce": (
        lambda m: (tell(m).map() | joined | MERGE | m | TEXT).invoke([X, Y]),
        [PX, PY, f"user: Merge:\n{{parts<={SOUP}}}\n{{parts<={RAIN}}}"],
    ),
    "history placeholder": (
        lambda m: (
            ChatPromptTemplate.from_messages(
                [("system", "Be {style}."), MessagesPlaceholder("past"), ("human", "{q}")]
            )
            | m
        ).invoke({"style": "terse", "past": [HumanMessage("soup"), AIMessage("?")], "q": "Well?"}),
        ["system: Be {style=terse}. | user: soup | assistant: ? | user: {q=Well?}"],
    ),
    "placeholder of pairs": (
        lambda m: (
            ChatPromptTemplate.from_messages([("placeholder", "{past}"), ("human", "{q}")]) | m
        ).invoke({"past": [("human", "hello there")], "q": "Well?"}),
        ["user: hello there | user: {q=Well?}"],
    ),
    "a message of the template's own": (
        lambda m: (
            ChatPromptTemplate([SystemMessage("You soup."), ("human", "Tell of {topic}.")]) | m
        ).invoke(X),
        ["system: You soup. | user: Tell of {topic=soup}."],
    ),
    "partial value": (
        lambda m: (P.partial(role="a pilot") | m).invoke({"topic": "soup"}),
        ["system: You are {role=a pilot}. | user: Tell of {topic=soup}."],
    ),
    "partial function": (
        lambda m: (P.partial(role=lambda: "a pilot") | m).invoke({"topic": "soup"}),
        ["system: You are a pilot. | user: Tell of {topic=soup}."],
    ),
    "string prompt": (
        lambda m: (PromptTemplate.from_template("Say {x} to {y}") | m).invoke(
            {"x": "soup", "y": "Bob"}
        ),
        ["user: Say {x=soup} to {y=Bob}"],
    ),
    "conversion and format": (
        lambda m: (PromptTemplate.from_template("Say {x:>6} to {y!r}") | m).invoke(
            {"x": "soup", "y": "Bob"}
        ),
        ["user: Say {x=  soup} to {y='Bob'}"],
    ),
    "lone value": (
        lambda m: (RunnablePassthrough() | PromptTemplate.from_template("Say {x}") | m).invoke(
            "soup"
        ),
        ["user: Say {x=soup}"],
    ),
    "number": (
        lambda m: (PromptTemplate.from_template("{n} times {x}") | m).invoke({"n": 3, "x": "so"}),
        ["user: {n=3} times {x=so}"],
    ),
    "braces in a value": (
        lambda m: (PromptTemplate.from_template("{{{x}}}") | m).invoke({"x": "{{x}} {y}"}),
        ["user: {{x={{x}} {y}}}"],
    ),
    "mustache sections": (
        lambda m: (mustache("Hi {{who}}:{{#items}} - {{t}}{{/items}}") | m).invoke(
            {"who": "Bob", "items": [{"t": "apple"}, {"t": "pear"}]}
        ),
        ["user: Hi {who=Bob}: - {items_t=apple} - {items_t=pear}"],
    ),
    "mustache escapes": (
        lambda m: (mustache("{{x}} {{{y}}}") | m).invoke({"x": "<Bob>", "y": "<b>"}),
        ["user: {x=&lt;Bob&gt;} {y=<b>}"],
    ),
    "jinja2": (
        lambda m: (
            PromptTemplate.from_template(
                "Hi {{who|upper}}{% for d in docs %} [{{d.t}}]{% endfor %}",
                template_format="jinja2",
            )
            | m
        ).invoke({"who": "bob", "docs": [{"t": "doc1"}, {"t": "doc2"}]}),
        ["user: Hi BOB [{docs_t=doc1}] [{docs_t=doc2}]"],
    ),
    "few-shot": (
        lambda m: (FEW | m).invoke({"sum": "3+3+3"}),
        ["user: Solve. Q:1+1 A:2 Q:2+2 A:4 Q:{sum=3+3+3} A:"],
    ),
    "few-shot chat": (
        lambda m: (
            ChatPromptTemplate.from_messages(
                [("system", "Be {style}."), FEW_CHAT, ("human", "{s}")]
            )
            | m
        ).invoke({"style": "exact", "s": "3+3+3"}),
        [
            "system: Be {style=exact}. | user: 1+1 | assistant: 2 | user: 2+2 | assistant: 4 | "
            "user: {s=3+3+3}"
        ],
    ),
    "bind": (lambda m: (P | m.bind(stop=["zzz"]) | TEXT).invoke(X), [PX]),
    "with_retry": (lambda m: (P | m.with_retry() | TEXT).invoke(X), [PX]),
    "a retry after a failure": (fails_once, [f"[step] | {PX}"]),
    "with_fallbacks": (
        lambda m: (P | RunnableLambda(lambda p: 1 / 0).with_fallbacks([m]) | TEXT).invoke(X),
        [PX],
    ),
    "with_config": (lambda m: (P | m.with_config(tags=["z"]) | TEXT).invoke(X), [PX]),
    "run_name": (
        lambda m: tell(m).with_config(run_name="teller").invoke(X),
        [f"[teller] | {PX}"],
    ),
    "configurable fields": (
        lambda m: (
            (P | m.configurable_fields(temperature=ConfigurableField(id="t")) | TEXT)
            .with_config(configurable={"t": 0.5})
            .invoke(X)
        ),
        [PX],
    ),
    "a lambda that calls": (lambda m: RunnableLambda(lambda x: tell(m).invoke(x)).invoke(X), [PX]),
    "a lambda that returns": (lambda m: RunnableLambda(lambda x: tell(m)).invoke(X), [PX]),
    "branch": (lambda m: RunnableBranch((lambda x: True, tell(m)), tell(m)).invoke(X), [PX]),
    "router": (
        lambda m: (
            RunnablePassthrough.assign(kind=itemgetter("topic"))
            | RunnableLambda(lambda d: tell(m) if d["kind"] == "soup" else m)
        ).invoke(X),
        [PX],
    ),
    "by hand in a @chain": (lambda m: by_hand.invoke({"llm": m}), [f"[by_hand] | {PX}"]),
    "a prompt value": (lambda m: m.invoke(P.invoke(X)), [PX]),
    "its messages": (lambda m: m.invoke(P.invoke(X).to_messages()), [PX]),
    "format_messages": (
        lambda m: m.invoke(P.format_messages(**X)),
        ["system: You are a chef. | user: Tell of soup."],
    ),
    "no callbacks": (lambda m: tell(m).invoke(X, {"callbacks": []}), [PX]),
    "another handler": (
        lambda m: tell(m).invoke(X, {"callbacks": [BaseCallbackHandler()]}),
        [PX],
    ),
    "a thread": (lambda m: ThreadPoolExecutor(1).submit(tell(m).invoke, X).result(), [PX]),
    "assign": (
        lambda m: (RunnablePassthrough.assign(topic=tell(m)) | P | m).invoke(X),
        [f"[topic] | {PX}", f"system: You are {{role=a chef}}. | user: Tell of {{topic<={SOUP}}}."],
    ),
    "a parsed part": (
        lambda m: (
            ChatPromptTemplate.from_template("Name {what} as JSON")
            | m
            | JsonOutputParser()
            | {"topic": itemgetter("title"), "role": itemgetter("words")}
            | tell(m)
        ).invoke({"what": "a tune"}),
        [
            "user: Name {what=a tune} as JSON",
            "system: You are {role=3}. | user: Tell of {topic<=The Long Rain}.",
        ],
    ),
    "an f-string in a lambda": (
        lambda m: (tell(m) | RunnableLambda(lambda s: f"Merge: {s} Done.") | m | TEXT).invoke(X),
        [PX, f"user: Merge: {{<={SOUP}}} Done."],
    ),
    "a stripped answer": (
        lambda m: (
            P | m | TEXT | RunnableLambda(lambda s: f"Merge: {s.strip()} Done.") | m | TEXT
        ).invoke({"role": "a chef", "topic": "padded soup"}),
        [
            "system: You are {role=a chef}. | user: Tell of {topic=padded soup}.",
            f"user: Merge: {{<={SOUP}}} Done.",
        ],
    ),
    "message history": (
        history,
        [
            "system: Be {style=terse}. | user: {q=Any soup?}",
            f"system: Be {{style=terse}}. | user: Any soup? | assistant: {SOUP} | "
            "user: {q=And now?}",
        ],
    ),
    "a bare model": (lambda m: m.invoke("soup"), ["user: soup"]),
}


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_provenance_that_the_server_gets(
    name: str, watched: Watched, plain_llm: ChatWeftline
) -> None:
    """Templates, values and edges arrive, and the result is the plain model's."""
    program, expected = CASES[name]
    result, sent = watched.run(program)
    assert sorted(sent) == sorted(expected)
    assert result == result_of(program, plain_llm)
