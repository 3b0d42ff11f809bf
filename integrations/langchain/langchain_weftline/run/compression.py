"""Begins the calls of a compressing retriever as soon as its inner retriever has documents.

LangChain asks the model about one document after the other. The calls do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_weftline.lower.classic import question_of_each
from langchain_weftline.run.nodes import begin
from langchain_weftline.run.prefetch import Ahead, Begun


class Compressed(Begun):
    """Begins the calls on the found documents. It is a callback handler of one retriever's run."""

    ignore_retriever = False
    run_inline = True

    def __init__(self, chain: Any) -> None:
        self._chain = chain
        self._run: UUID | None = None
        self._query = ""
        self._ahead: Ahead | None = None

    def on_retriever_start(self, serialized: object, query: str, *, run_id: UUID, **_: Any) -> None:
        """Note the run of the compressing retriever: it is the first one to start."""
        if self._run is None:
            self._run, self._query = run_id, query

    def on_retriever_end(
        self,
        documents: Sequence[Document],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **_: Any,
    ) -> None:
        """Begin the calls when the inner retriever ends, and end them when the outer one ends."""
        if run_id == self._run:
            self._close()
        elif parent_run_id is not None and parent_run_id == self._run and self._ahead is None:
            given = [
                {"question": self._query, "context": document.page_content}
                for document in documents
            ]
            self._ahead = begin(self._chain.map(), given, parent_run_id)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A retriever that has failed has ended, too."""
        if run_id == self._run:
            self._close()

    def of(self, parent: UUID | None) -> Ahead | None:
        return self._ahead

    def _close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


def beginning(step: Any, config: RunnableConfig) -> RunnableConfig:
    """`config`, with the handler that begins the calls of `step` if it compresses what it finds."""
    chain = question_of_each(step)
    return config if chain is None else merge_configs(config, {"callbacks": [Compressed(chain)]})
