"""Random chains: every prompt has the same text, accelerated or plain."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    NumberedListOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnablePassthrough,
)

from langchain_weftline import ChatWeftline, accelerate

Chain = Runnable[Any, Any]
GIVEN = ("g", "h")
CONSTANTS = st.sampled_from(["", "x", " {{", "}} ", "\n", "'", '"', "\\", "é", "1. ", ", "])
TEXTS = st.text("ab {}'\"\\\n,1.é", max_size=6)


@st.composite
def templates(draw: st.DrawFn, names: list[str]) -> ChatPromptTemplate:
    """Make one or two messages of constant text and variables from `names`."""
    roles = draw(st.sampled_from([["human"], ["system", "human"], ["human", "ai", "human"]]))
    messages = []
    for role in roles:
        slots = st.sampled_from(names).map(lambda name: "{" + name + "}")
        parts = draw(st.lists(CONSTANTS | slots, min_size=1, max_size=5))
        messages.append((role, "a" + "".join(parts)))
    return ChatPromptTemplate(messages)


def opaque(value: Any) -> Any:
    """What only the client can do. It fails for some texts."""
    text = str(value)
    if text.count("é") > 3:
        raise LookupError(text)
    return [text.swapcase(), len(text)] if "{" in text else text[::-1]


def pair(value: Any) -> dict[str, Any]:
    """An object with a template's values, or without one of them."""
    return {"x": opaque(value), **({} if "1. 1" in str(value) else {"y": [value]})}


def fenced(name: str) -> ChatPromptTemplate:
    """Make a prompt whose echo holds JSON, unless the value of `name` breaks it."""
    return ChatPromptTemplate.from_template('```json\n{{"k": ["{' + name + '}", 1.50, null]}}\n```')


def branch(name: str, one: Chain, other: Chain, llm: ChatWeftline) -> Chain:
    """Three ways, by the value of `name`, which may be a text, a list or another object."""
    text = StrOutputParser()
    return RunnableBranch(
        (lambda v: "é" in v[name] and "1" not in v[name], one | llm | text),
        (lambda v: v[name].strip().startswith(("user: a", "[")), other | llm | text),
        other | llm | (lambda said: said.content) | one | llm | text,
    )


@st.composite
def chains(draw: st.DrawFn, llm: ChatWeftline) -> Chain:
    """Make steps that each add a value to a dict from values in it, and a last step."""
    chain: Chain = RunnablePassthrough()
    again, once = draw(templates(["x", "y"])), draw(templates(["x"]))
    names = [*GIVEN]
    for number in range(draw(st.integers(1, 3))):
        new = f"v{number}"
        prompt = draw(templates(names))
        source = draw(st.sampled_from(names))
        part: Chain = draw(
            st.sampled_from(
                [
                    prompt | llm | StrOutputParser(),
                    prompt | llm | CommaSeparatedListOutputParser(),
                    prompt | llm | NumberedListOutputParser(),
                    fenced(source) | llm | JsonOutputParser() | itemgetter("k"),
                    (lambda x: [x, {**x, "g": "other"}]) | (prompt | llm | StrOutputParser()).map(),
                    RunnableLambda(itemgetter(source)) | (lambda x: {"shown": x}),
                    prompt | llm | StrOutputParser() | opaque,
                    prompt | llm | StrOutputParser() | pair | again | llm | StrOutputParser(),
                    RunnableLambda(itemgetter(source)) | opaque,
                    prompt
                    | llm
                    | CommaSeparatedListOutputParser()
                    | (once | llm | StrOutputParser()).map(),
                    branch(source, prompt, draw(templates(names)), llm),
                ]
            )
        )
        chain = chain | RunnablePassthrough.assign(**{new: part})
        names.append(new)
    every = ChatPromptTemplate.from_template(", ".join("{" + name + "}" for name in names))
    last: list[Chain] = [RunnablePassthrough(), every | llm, every | llm | StrOutputParser()]
    return chain | draw(st.sampled_from(last))


def outcome(act: Callable[[Any], Any], value: Any) -> tuple[str, str]:
    """Return the repr of the result of `act`, or the type and text of its exception."""
    try:
        made = act(value)
        return "value", repr(made.content if isinstance(made, AIMessage) else made)
    except Exception as error:
        return type(error).__name__, str(error)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), values=st.tuples(TEXTS, TEXTS))
def test_plain_and_accelerated_agree(
    echo_url: str, data: st.DataObject, values: tuple[str, str]
) -> None:
    """Each answer is the echo of its prompt, so equal results mean that all prompts were equal."""
    chain = data.draw(chains(ChatWeftline(base_url=echo_url)))
    given_values = dict(zip(GIVEN, values, strict=True))
    expected = outcome(chain.invoke, given_values)
    assert outcome(accelerate(chain).invoke, given_values) == expected
