"""Callback handlers of ours, which hear of runs beside those of the user."""

from __future__ import annotations

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
