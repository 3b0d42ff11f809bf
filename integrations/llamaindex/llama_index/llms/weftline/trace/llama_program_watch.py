"""What `weftline compare` does to a LlamaIndex program.

The program's models are put on the server, their calls are sent ahead or one by one, and what its
spans and events say is counted. This runs in a process of its own, which ends with the comparison.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from functools import wraps
from typing import Any

from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMCompletionEndEvent
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.llms.weftline.base import Weftline
from llama_index_instrumentation import get_dispatcher
from pydantic import PrivateAttr

from weftline.kit.program_run import Current, Side
from weftline.kit.server import default_base_url

# Models of other packages, which Weftline takes the place of where they are installed.
_REPLACED = (("llama_index.llms.openai", "OpenAI"), ("llama_index.llms.openai_like", "OpenAILike"))
# What an application says of a model and Weftline has no field for.
_KEPT = frozenset(Weftline.model_fields) - {"base_url", "api_key", "ahead", "provenance"}


def prepare(side: Side, current: Current) -> None:
    """Change LlamaIndex's classes in this process, for all programs that it will run."""
    made = Weftline.__init__

    @wraps(made)
    def __init__(self: Any, model: str = "default", **values: Any) -> None:
        own = {name: value for name, value in values.items() if name in _KEPT}
        sent = {"base_url": default_base_url(), "ahead": side.accelerated}
        made(self, side.model, **own, **sent, provenance=side.accelerated)

    Weftline.__init__ = __init__  # type: ignore[method-assign]
    for module, name in _REPLACED:
        if importlib.util.find_spec(module) is not None:
            setattr(importlib.import_module(module), name, Weftline)
    root = get_dispatcher()
    root.add_span_handler(_Spans(current))
    root.add_event_handler(_Events(current))


class _Spans(BaseSpanHandler[BaseSpan]):
    """Counts the time in which a method of LlamaIndex runs that the program has called."""

    _current: Current = PrivateAttr()
    _outermost: set[str] = PrivateAttr(default_factory=set)

    def __init__(self, current: Current) -> None:
        super().__init__()
        self._current = current

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any | None = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> BaseSpan:
        if parent_span_id is None:
            self._outermost.add(id_)
            self._current.watch.enter()
        return BaseSpan(id_=id_)

    def prepare_to_exit_span(self, id_: str, *args: Any, **kwargs: Any) -> BaseSpan | None:
        return self._end(id_)

    def prepare_to_drop_span(self, id_: str, *args: Any, **kwargs: Any) -> BaseSpan | None:
        return self._end(id_)

    def _end(self, id: str) -> BaseSpan | None:
        if id in self._outermost:
            self._outermost.remove(id)
            self._current.watch.leave()
        return self.open_spans.get(id)


class _Events(BaseEventHandler):
    """Counts what LlamaIndex tells its event handlers, and keeps the answers of models."""

    _current: Current = PrivateAttr()

    def __init__(self, current: Current) -> None:
        super().__init__()
        self._current = current

    @classmethod
    def class_name(cls) -> str:
        return "WeftlineComparison"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        watch = self._current.watch
        watch.event(event.class_name())
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            watch.answer(event.response.message.content or "")
        elif isinstance(event, LLMCompletionEndEvent):
            watch.answer(event.response.text)
