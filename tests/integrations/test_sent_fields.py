"""The fields of calls that are sent ahead: those of the ordinary request, in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from langchain_core.prompts import ChatPromptTemplate
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.ahead.request_claims import request_key
from pydantic import BaseModel, Field

from langchain_weftline import ChatWeftline, accelerate
from tests.integrations.conftest import StartServer
from tests.integrations.recording import Recording, recorded
from tests.integrations.test_llama_ahead import nodes
from weftline.errors import WeftlineError

SUBMIT, CHAT = "/v1/submit", "/v1/chat/completions"
ASK = ChatPromptTemplate.from_template("Where is {town}?")
CALL = '<tool_call>\n{"name": "Answer", "arguments": {"zeal": "much"}}\n</tool_call>'
SCRIPT = [("Where is Rome?", CALL * 2)]


class Part(BaseModel):
    """A part of an answer."""

    year: int
    town: str
    area: float


class Answer(BaseModel):
    """An answer whose fields run from z to a, so that the alphabet's order is another one."""

    zeal: str = Field(description="How the answer is given.")
    parts: list[Part]
    grade: int
    answer: str


def ahead(chain: Any) -> Any:
    """`chain`, which sends its call ahead although the call is alone."""
    return accelerate(chain, on_graph=lambda graph: None)


def test_the_schema_of_an_answer_keeps_its_order(recording: Recording) -> None:
    """The model writes its reasons before its answer, sent ahead as in an ordinary request."""
    llm = ChatWeftline(base_url=recording.url, max_retries=0)
    forms: list[Any] = [Answer, {"title": "Answer", **Answer.model_json_schema()}]
    for form, method in product(forms, ("json_schema", "json_mode")):
        chain = ASK | llm.with_structured_output(form, method=method)
        for one in (chain, ahead(chain)):
            with pytest.raises(Exception, match="cannot hold an output to a json_schema"):
                one.invoke({"town": "Rome"})
        plain = recording.bodies(CHAT)[-1]["response_format"]["json_schema"]["schema"]
        sampling = recording.bodies(SUBMIT)[-1]["calls"][0]["placeholders"][-1]["sampling"]
        assert json.dumps(sampling["constraint"]["json_schema"]) == json.dumps(plain)
        assert list(plain["properties"]) == ["zeal", "parts", "grade", "answer"]


def test_the_tools_in_a_prompt_keep_their_order(recording: Recording) -> None:
    """The echoed prompt of a call that is sent ahead is that of an ordinary request."""
    llm = ChatWeftline(base_url=recording.url)
    chain = ASK | llm.bind_tools([Part, Answer])
    plain, sent = (one.invoke({"town": "Rome"}).content for one in (chain, ahead(chain)))
    assert len(recording.bodies(SUBMIT)) == len(recording.bodies(CHAT)) == 1
    assert sent == plain
    assert [plain.index(f'"{name}": {{"') for name in ("zeal", "parts", "grade", "answer")] == (
        sorted(plain.index(f'"{name}": {{"') for name in ("zeal", "parts", "grade", "answer"))
    )


def test_a_synthesizer_sends_a_schema_in_its_order(recording: Recording) -> None:
    """The form of LlamaIndex's answer, sent ahead as text and as a tool."""
    order = ["zeal", "parts", "grade", "answer"]
    for with_tools in (False, True):
        llm = Weftline(
            base_url=recording.url,
            max_tokens=8,
            context_window=2000,
            is_function_calling_model=with_tools,
        )
        made = get_response_synthesizer(
            response_mode="accumulate",  # type: ignore[arg-type]
            llm=llm,
            output_cls=Answer,
        )
        # The server refuses the form, and its echo of the prompt calls no tool.
        with pytest.raises((WeftlineError, ValueError)):
            made.synthesize("Where?", nodes(2))
        call = recording.bodies(SUBMIT)[-1]["calls"][0]
        if with_tools:
            schema = call["tools"][0]["function"]["parameters"]
        else:
            schema = call["placeholders"][-1]["sampling"]["constraint"]["json_schema"]
        assert list(schema["properties"]) == order


def test_requests_with_schemas_in_other_orders_are_other_requests() -> None:
    """The fields of a request may have any order. Those of its schema may not."""

    def key(*names: str, **fields: Any) -> str:
        schema = {"properties": {name: {"type": "string"} for name in names}}
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        return request_key([("user", "Where?")], {**fields, "response_format": form})

    assert key("b", "a") != key("a", "b")
    assert key("a", temperature=0, seed=1) == key("a", seed=1, temperature=0)


@pytest.fixture(scope="module")
def proxy(start_script: StartServer) -> Iterator[Recording]:
    with recorded(start_script(SCRIPT)) as recording:
        yield recording


@pytest.mark.parametrize("tools", [[Answer], [Answer, Part]], ids=["one tool", "two"])
@pytest.mark.parametrize("choice", [None, "required", "any", "Answer"])
@pytest.mark.parametrize("parallel", [None, False, True], ids=["unset", "one", "several"])
def test_a_field_that_is_not_set_is_not_sent(
    tools: list[Any], choice: str | None, parallel: bool | None, proxy: Recording
) -> None:
    """The model writes two calls. As many are read of a call sent ahead as of a request.

    A model that must call its only tool calls it once, unless the request allows more.
    """
    proxy.requests.clear()
    llm = ChatWeftline(base_url=proxy.url)
    more: dict[str, Any] = {} if parallel is None else {"parallel_tool_calls": parallel}
    chain = ASK | llm.bind_tools(tools, tool_choice=choice, **more)
    plain, sent = (one.invoke({"town": "Rome"}) for one in (chain, ahead(chain)))
    alone = choice in ("required", "any") and len(tools) == 1
    count = 1 if parallel is False or (parallel is None and alone) else 2
    assert len(plain.tool_calls) == len(sent.tool_calls) == count
    [request], [submit] = proxy.bodies(CHAT), proxy.bodies(SUBMIT)
    for name in ("tool_choice", "parallel_tool_calls"):
        in_submit = submit["calls"][0].get(name)
        if isinstance(in_submit, dict):  # a call leaves the only type out
            in_submit = {"type": "function", **in_submit}
        assert in_submit == request.get(name)
