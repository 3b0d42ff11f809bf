"""Turns a value of the graph into the response that a ChatWeftline would have received."""

from __future__ import annotations

import time
import uuid

from openai.types.chat import ChatCompletion

from weftline.kit.openai import finish_reason, message, usage
from weftline.watching import Value


def new_variable() -> str:
    """A new id for a variable."""
    return f"v_{uuid.uuid4().hex}"


def completion_of(value: Value) -> ChatCompletion:
    """The value as the response of OpenAI's API that a model would have received."""
    said = value.value
    choice = {
        "index": 0,
        "message": message(said, value.facts),
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
