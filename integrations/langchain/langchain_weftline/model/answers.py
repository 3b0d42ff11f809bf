"""Turns a value of the graph into the answer that a ChatWeftline returns.

LangChain's own code makes the result, so a message of a compiled chain has every field that a
message of a plain chain has.
"""

from __future__ import annotations

import re
import time
import uuid
from functools import cache
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI
from openai.types.chat import ChatCompletion
from pydantic import SecretStr

from langchain_weftline.model.forms import Form
from langchain_weftline.model.transport import Answering, httpx
from weftline.adapters.openai import finish_reason, message, usage
from weftline.watching import Value

PROVIDER = "weftline"
_VARIABLE = re.compile("v_([0-9a-f]{32})")


def new_variable() -> str:
    """A new id for a variable. It contains the id of the call's run in LangChain."""
    return f"v_{_uuid7().hex}"


def run_id_of(variable: str) -> uuid.UUID | None:
    """The id of the run that makes a variable, or None for a variable of another origin."""
    found = _VARIABLE.fullmatch(variable)
    return None if found is None else uuid.UUID(found[1])


def _uuid7() -> uuid.UUID:
    """A UUID of version 7, as tracers expect of runs: it begins with the time."""
    random = uuid.uuid4().int & ((1 << 80) - 1)
    made = (time.time_ns() // 1_000_000) << 80 | random
    return uuid.UUID(int=made & ~(0xF << 76) | 0x7 << 76)


def completion_of(value: Value) -> ChatCompletion:
    """The value as the response of OpenAI's API that a model would have received."""
    said = value.value
    choice = {
        "index": 0,
        "message": message(said),
        "finish_reason": finish_reason(said, value.facts["finish_reason"]),
        "logprobs": None,
    }
    answer = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": value.facts["model"],
        "choices": [choice],
        "usage": usage(value.facts),
    }
    return ChatCompletion.model_validate(answer)


def result_of(value: Value, form: Form | None = None) -> ChatResult:
    """The result of the model's call, as callbacks receive it.

    Raises the exception of a model whose answer does not have the form.
    """
    answer = completion_of(value)
    result = _model()._create_chat_result(answer if form is None else form.read(answer))
    [generation] = result.generations
    # Of a branch it is the call of the side that was taken.
    said, run = generation.message, run_id_of(value.facts.get("taken", value.variable))
    told = {**(generation.generation_info or {}), **said.response_metadata}
    said.response_metadata = {**(result.llm_output or {}), **told, "model_provider": PROVIDER}
    if (session := value.facts.get("session_id")) is not None:
        said.response_metadata["session_id"] = session
    said.id = None if run is None else f"lc_run--{run}-0"
    return result


def message_of(value: Value, form: Form | None = None) -> AIMessage:
    """LangChain's message for the value of a call: its text, or with tools a message as JSON."""
    if "finish_reason" not in value.facts:  # no model generated it
        return AIMessage(content=value.value)
    made = result_of(value, form).generations[0].message
    assert isinstance(made, AIMessage), "a call answers as the assistant"
    return made


@cache
def _model() -> BaseChatOpenAI:
    """A model that sends nothing."""
    return BaseChatOpenAI(
        model="default",
        base_url="http://weftline/v1",
        api_key=SecretStr("none"),
        http_client=Answering(lambda _: httpx.Response(503)),
        max_retries=0,
    )


def chunk_fields(value: Value) -> dict[str, Any]:
    """The fields of a streamed message's last chunk: its id, usage and metadata."""
    if "finish_reason" not in value.facts:
        return {}
    made = message_of(value)
    return {
        "id": made.id,
        "usage_metadata": made.usage_metadata,
        "response_metadata": made.response_metadata,
    }
