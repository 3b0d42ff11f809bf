"""Which callback handlers are an audience: those of the user, which want to hear of each run.

Our own handlers hear of runs, too. A run that only they watch may take place in the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from langchain_core.callbacks import BaseCallbackHandler


class OwnHandler(BaseCallbackHandler):
    """A handler of ours, which hears only of what a subclass asks for."""

    ignore_llm = True
    ignore_chat_model = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Aside(OwnHandler):
    """A handler of ours that is no audience."""


def hears_models(handlers: Iterable[BaseCallbackHandler]) -> bool:
    """Whether one of `handlers` wants to know of model calls."""
    return any(not (one.ignore_chat_model and one.ignore_llm) for one in _audience(handlers))


def hears_retrievers(handlers: Iterable[BaseCallbackHandler]) -> bool:
    """Whether one of `handlers` wants to know of retrievers."""
    return any(not one.ignore_retriever for one in _audience(handlers))


def _audience(handlers: Iterable[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
    return [one for one in handlers if not isinstance(one, Aside)]
