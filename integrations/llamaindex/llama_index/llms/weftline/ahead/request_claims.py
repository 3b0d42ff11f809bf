"""Which request takes which result of the calls that were sent ahead: by its prompt and fields.

A result goes to a request only if the messages and all fields are exactly equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from llama_index.llms.weftline.plan.answer_symbols import Index, filled, reads
from llama_index.llms.weftline.plan.call_plan import CallPlan

from weftline.errors import TransformFailed
from weftline.kit import Planned, ReadValue, Result


def request_key(messages: Iterable[tuple[str, str]], fields: Mapping[str, Any]) -> str:
    """The key of a request. Two requests have equal keys only if messages and fields are equal.

    The fields may have any order, but not what is in them: a model reads a schema in its order.
    """
    return json.dumps([list(messages), sorted(fields.items())])


class SentCalls(Protocol):
    """Calls that were sent ahead."""

    def claim(self, key: str) -> Result | None:
        """The result of the first call with this key that no request has claimed."""
        ...


def planned(
    plan: CallPlan, index: int, fields: Mapping[str, Any], results: Mapping[Index, ReadValue]
) -> Planned[str]:
    """Call number `index` of a plan, with the results of the calls and the values that it reads."""
    draft = plan.drafts[index]
    messages = [(role, plan.symbols.parts(text)) for role, text in draft.messages]
    inputs: frozenset[Index] = frozenset().union(*(reads(parts) for _, parts in messages))

    def key_of(values: Mapping[str, Any]) -> str | None:
        answers = {one: values[str(one)] for one in inputs}
        try:
            texts = [(role, filled(parts, answers)) for role, parts in messages]
        except TransformFailed:
            return None  # LlamaIndex raises the same error itself, and makes no request
        return request_key(texts, {**fields, **draft.fields})

    read = {str(one): results[one] for one in inputs}
    answer = results[index]
    assert isinstance(answer, Result), "an answer comes from the server"
    return Planned(answer, read, key_of)
