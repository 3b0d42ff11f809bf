"""Begins the calls on documents as soon as LangChain's own retriever has found them.

A compressing retriever asks the model about one document after the other. The calls do not depend
on each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.documents import Document

from langchain_weftline.ahead.handler_lookup import Begun
from langchain_weftline.ahead.nodes import begin
from langchain_weftline.ahead.prefetch import Ahead


class Compressed(Begun):
    """Begins the calls on the found documents. It is a callback handler of the whole run.

    `chains` maps the name of a compressing retriever to the chain that it runs on each document.
    """

    ignore_retriever = False
    run_inline = True

    def __init__(self, chains: Mapping[str, Any]) -> None:
        self._chains = chains
        self._queries: dict[UUID, tuple[Any, str]] = {}  # of compressing retrievers that run
        self._begun: dict[UUID, Ahead] = {}

    def on_retriever_start(
        self, serialized: object, query: str, *, run_id: UUID, name: str | None = None, **_: Any
    ) -> None:
        """Note the run of a compressing retriever."""
        chain = self._chains.get(name or "")
        if chain is not None:
            self._queries[run_id] = chain, query

    def on_retriever_end(
        self,
        documents: Sequence[Document],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **_: Any,
    ) -> None:
        """Begin the calls when the inner retriever ends, and end them when the outer one ends."""
        if run_id in self._queries:
            self._close(run_id)
        elif parent_run_id in self._queries and parent_run_id not in self._begun:
            chain, query = self._queries[parent_run_id]
            given = [
                {"question": query, "context": document.page_content} for document in documents
            ]
            begun = begin(chain.map(), given, parent_run_id)
            if begun is not None:
                self._begun[parent_run_id] = begun

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A retriever that has failed has ended, too."""
        self._close(run_id)

    def of(self, parent: UUID | None) -> Iterable[Ahead]:
        return list(self._begun.values())

    def _close(self, run_id: UUID) -> None:
        self._queries.pop(run_id, None)
        begun = self._begun.pop(run_id, None)
        if begun is not None:
            begun.close()
