"""Values whose looks depend on no class of the user's: showing them runs nobody's code."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage


def is_plain(value: Any) -> bool:
    """Whether `value` is built of strings, numbers, messages, lists, tuples and dicts alone."""
    if isinstance(value, str):
        return type(value).__format__ is str.__format__
    if type(value) in (int, float, bool, type(None)) or isinstance(value, BaseMessage):
        return True
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return type(value) is dict and all(map(is_plain, value.values()))
