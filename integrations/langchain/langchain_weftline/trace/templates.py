"""Reads prompt templates from the JSON that callbacks receive, if every class in it is known.

LangChain's own `load` is not used: it is beta, takes 0.4 ms for a template, and builds any class
that the JSON names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import RLock
from types import MappingProxyType
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import (
    AIMessagePromptTemplate,
    BasePromptTemplate,
    ChatMessagePromptTemplate,
    ChatPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
    SystemMessagePromptTemplate,
)

# The most templates that are kept. LangChain passes the same dict for a template at each use, so
# those in use stay, and templates that were made for one call are evicted.
MAX_TEMPLATES = 256

_PLAIN = (str, int, float, bool, type(None))


class UnreadableTemplate(ValueError):
    """The JSON holds a class or a value that is not known here."""


class Templates:
    """The templates read so far, by the id of their JSON. The JSON is kept, so ids stay valid."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[object, BasePromptTemplate[Any] | None]] = OrderedDict()
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()

    def find(self, serialized: object) -> BasePromptTemplate[Any] | None:
        """The template, or None where its JSON cannot be read."""
        with self._lock:
            known = self._known.get(id(serialized))
            if known is not None:
                self._known.move_to_end(id(serialized))
                return known[1]
        template = _template(serialized)
        with self._lock:
            self._known[id(serialized)] = serialized, template
            if len(self._known) > MAX_TEMPLATES:
                self._known.popitem(last=False)
        return template


def _template(serialized: object) -> BasePromptTemplate[Any] | None:
    try:
        made = _read(serialized)
    except (
        UnreadableTemplate,
        KeyError,
        TypeError,
        ValueError,
    ):  # another version's, or no template
        return None
    return made if isinstance(made, BasePromptTemplate) else None


def _read(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        raise UnreadableTemplate(type(value).__name__)
    if "lc" not in value:
        return {key: _read(item) for key, item in value.items()}
    if value.get("type") != "constructor" or value["id"][0] not in ("langchain", "langchain_core"):
        raise UnreadableTemplate(str(value.get("id")))
    cls = _CLASSES.get(value["id"][-1])
    if cls is None or value["kwargs"].get("template_format", "f-string") == "jinja2":
        raise UnreadableTemplate(str(value["id"]))
    return cls(**{key: _read(item) for key, item in value["kwargs"].items()})


_CLASSES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        cls.__name__: cls
        for cls in (
            AIMessage,
            HumanMessage,
            SystemMessage,
            AIMessagePromptTemplate,
            HumanMessagePromptTemplate,
            SystemMessagePromptTemplate,
            ChatMessagePromptTemplate,
            ChatPromptTemplate,
            MessagesPlaceholder,
            PromptTemplate,
        )
    }
)
