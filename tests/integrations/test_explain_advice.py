"""`explain()` says what keeps a chain's prompts from the KV cache: by its templates alone, and with
what the server has counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import SystemMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)

from langchain_weftline import ChatWeftline, accelerate
from langchain_weftline.lower.segments import segments_of
from tests.integrations.ahead_chains import TEXT, model
from tests.integrations.conftest import served
from tests.integrations.recording import Recording
from weftline.errors import ConnectionFailed

NOWHERE = ChatWeftline(base_url="http://127.0.0.1:1", max_retries=0)
RULES = "Say where it stands. " * 40  # 840 characters, about 210 tokens
FEW = "Be brief. " * 20  # 200 characters: too few to be told of
SHOT = PromptTemplate.from_template("{q}: {a}")
SHOTS = [{"q": "Who wrote it?", "a": f"The author, in chapter {number}."} for number in range(12)]
CHAT_SHOTS = FewShotChatMessagePromptTemplate(
    examples=SHOTS, example_prompt=ChatPromptTemplate([("human", "{q}"), ("ai", "{a}")])
)
ANEW = "tokens of constant text behind it are computed anew whenever it changes"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server without calls. The shared one has seen thousands, and so looks at few of them."""
    with served() as url:
        yield url


def boom() -> str:
    raise LookupError("it must not be called")


def told(template: Any) -> list[str]:
    """The sentences of an explanation for any input; no server is there."""
    return [one.says for one in accelerate(template | NOWHERE).explain().advice]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            ChatPromptTemplate([("system", "It is {now}. " + RULES), ("human", "{x}")]),
            [f"system message, variable `now`, about 210 {ANEW}: "
             "move it to the end of the system message"],
        ),
        (
            PromptTemplate.from_template("{now}\n" + RULES),
            [f"user message, variable `now`, about 210 {ANEW}: move it to the end of the prompt"],
        ),
        (
            ChatPromptTemplate([("system", "For {user}."), ("human", RULES + "{x}")]),
            [f"system message, variable `user`, about 210 {ANEW}: "
             "move it after the text that follows it"],
        ),
        (
            ChatPromptTemplate([("system", "For {user}."), SystemMessage(RULES), ("human", "{x}")]),
            [f"system message, variable `user`, about 210 {ANEW}: "
             "move it to the end of the system message"],
        ),
        (
            PromptTemplate.from_template("{a} or {b}: " + RULES),
            ["user message, variables `a` and `b`, about 210 tokens of constant text behind them "
             "are computed anew whenever one of them changes: move them to the end of the prompt"],
        ),
        (
            PromptTemplate.from_template("{b}" + RULES + "{a}" + RULES + "{b}{c}"),
            [f"user message, variable `b`, about 420 {ANEW}: "
             "move it after the text that follows it",
             f"user message, variable `a`, about 210 {ANEW}: "
             "move it after the text that follows it"],
        ),
        (
            PromptTemplate.from_template("{{{now}}} {{&user}}" + RULES, template_format="mustache"),
            ["user message, variables `now` and `user`, about 210 tokens of constant text behind "
             "them are computed anew whenever one of them changes: "
             "move them to the end of the prompt"],
        ),
        (
            PromptTemplate(template="{now} " + RULES + "{x}", input_variables=["x"],
                           partial_variables={"now": boom}),
            [f"user message, variable `now`, about 210 {ANEW}: "
             "move it after the text that follows it"],
        ),
        (
            FewShotPromptTemplate(prefix="For {user}:", examples=SHOTS, example_prompt=SHOT,
                                  suffix="{x}"),
            [f"user message, variable `user`, about 127 {ANEW}: "
             "move it after the text that follows it"],
        ),
        (
            ChatPromptTemplate([("system", "For {user}."), CHAT_SHOTS, ("human", "{x}")]),
            [f"system message, variable `user`, about 115 {ANEW}: "
             "move it to the end of the assistant message"],
        ),
    ],
    ids=["clock", "one_text", "later_message", "constant_message", "two", "twice", "mustache",
         "partial", "few_shot", "chat_few_shot"],
)  # fmt: skip
def test_a_variable_before_constant_text_is_told(template: Any, says: list[str]) -> None:
    """The most expensive comes first. A function that fills a variable is not called for it."""
    assert told(template) == says


@pytest.mark.parametrize(
    "template",
    [
        ChatPromptTemplate([("system", RULES), ("human", "It is {now}. {x}")]),
        PromptTemplate.from_template(RULES + "Context: {context}\nQuestion: {x}\nAnswer:"),
        PromptTemplate.from_template("For {user}: " + FEW + "{x}"),
        PromptTemplate(template="{rules}" + RULES + "{x}", input_variables=["x"],
                       partial_variables={"rules": "Be kind."}),
        ChatPromptTemplate([("system", RULES), MessagesPlaceholder("history"),
                            ("human", "{x} " + RULES)]),
        ChatPromptTemplate([("system", RULES), ("human", "{x}")]).partial(x="constant"),
        PromptTemplate.from_template("{{#on}}" + RULES + "{{/on}}" + RULES,
                                     template_format="mustache"),
        PromptTemplate.from_template("{{ now }}" + RULES, template_format="jinja2"),
        FewShotPromptTemplate(prefix="{x}", examples=[{"q": RULES}], example_prompt=SHOT,
                              suffix=RULES),
    ],
    ids=["rules_first", "rag", "short", "partial_text", "history", "partial_chat", "section",
         "jinja2", "broken_example"],
)  # fmt: skip
def test_nothing_is_told_of_a_sound_prompt(template: Any) -> None:
    """Variables behind the constant text, short text, constant partials, a history that grows
    anyway, and templates that cannot be read without a run, or not at all. The explanation has no
    more lines.
    """
    explained = accelerate(template | NOWHERE).explain()
    assert explained.advice == ()
    assert "KV cache" not in str(explained)


def test_each_template_of_a_chain_is_told_once_by_its_place() -> None:
    """A template that maps over three items is one. The worst of the chain comes first."""
    short = PromptTemplate.from_template("{x}" + RULES)
    long = ChatPromptTemplate([("human", "{line}" + RULES * 2)], name="long")
    chain = {"line": (short | NOWHERE | TEXT).map() | (lambda lines: "".join(lines))} | long
    compiled = accelerate(chain | NOWHERE)
    for explained in (compiled.explain(), compiled.explain(["a", "b", "c"])):
        assert explained.advice[0].name == "ChatPromptTemplate 'long'"
        assert [one.lost_tokens for one in explained.advice] == [420, 210]
        lines = [line for line in str(explained).splitlines() if line.startswith("KV cache: ")]
        assert lines == [f"KV cache: {one.name}: {one.says}." for one in explained.advice]


NAMES = st.sampled_from(["now", "user", "x"])
CONSTANTS = st.text(st.sampled_from("ab {}\n.é"), max_size=6)


@given(st.lists(st.one_of(CONSTANTS, st.tuples(NAMES)), max_size=8))
def test_the_segments_add_up_to_langchains_text(parts: list[str | tuple[str]]) -> None:
    """With values for its variables they are what LangChain renders, in any f-string."""
    text = "".join(
        f"{{{part[0]}}}" if isinstance(part, tuple) else part.replace("{", "{{").replace("}", "}}")
        for part in parts
    )
    values = {"now": "noon", "user": "Ada", "x": ""}
    found = segments_of(PromptTemplate.from_template(text))
    made = "".join(one.text if one.name is None else values[one.name] for one in found)
    assert made == PromptTemplate.from_template(text).format(**values)


def clock(llm: ChatWeftline, name: str, rules: str = RULES) -> Any:
    """A chain whose prompt begins with the time in a town, and goes on with rules."""
    system = f"The time in {name} is {{now}}. {rules}"
    return ChatPromptTemplate([("system", system), ("human", "{question}")]) | llm


def given_at(minute: int) -> dict[str, str]:
    return {"now": f"09:0{minute}", "question": f"Who may enter room {minute}?"}


@pytest.mark.parametrize(
    ("way", "name"), [(accelerate, "Delft"), (accelerate, "Ghent")], ids=["compiled", "ahead"]
)
def test_the_server_is_asked_only_where_the_user_wants_it(
    recording: Recording, way: Any, name: str
) -> None:
    """Its sentence has the words of the one without it, and what was lost. Rows of other programs
    of the same name are left out.
    """
    llm = model(recording, max_tokens=4)
    ours, other = way(clock(llm, name)), accelerate(clock(llm, f"New {name}", "Be kind. " * 90))
    for minute in range(4):
        for chain in (ours, other):
            chain.invoke(given_at(minute))
    recording.requests.clear()

    def asked() -> list[Any]:
        """The requests but for the end of the last run's session, which comes up to 0.5 s later."""
        return [request for request in recording.requests if request[0] != "DELETE"]

    (expected,) = ours.explain(given_at(0)).advice
    assert asked() == []
    explained = ours.explain(given_at(0), ask_server=True)
    assert asked() == [("GET", "/v1/advice?limit=1000", None)]
    without, counted = explained.advice
    assert (without, counted.calls) == (expected, 3)
    assert counted.lost_tokens > 3 * 150
    assert without.says.partition(", about")[0] == "system message, variable `now`"
    assert counted.says.startswith("system message, variable `now`, ")
    assert counted.says.rpartition(": ")[2] == without.says.rpartition(": ")[2]
    assert f"KV cache, as the server has counted: {counted.name}: " in str(explained)


def test_a_chain_of_messages_is_found_by_the_name_of_its_call(recording: Recording) -> None:
    """It has no template. The server's row says that the text changes."""
    llm = model(recording, max_tokens=4).with_config(run_name="messages")
    messages = (lambda x: [SystemMessage(f"It is {x}. {RULES}"), ("human", x)]) | llm
    chain = accelerate(messages, on_graph=lambda graph: None)  # so that the one call is sent ahead
    for minute in range(4):
        chain.invoke(f"09:0{minute}")
    (counted,) = chain.explain("09:05", ask_server=True).advice
    assert counted.name == "messages"
    assert counted.says.startswith("system message changes from character ")


def test_a_server_that_does_not_answer_is_named() -> None:
    """Asking may fail, as any request may."""
    with pytest.raises(ConnectionFailed, match=r"no weftline server answers at http://127.0.0.1:1"):
        accelerate(clock(NOWHERE, "Bruges")).explain(ask_server=True)
