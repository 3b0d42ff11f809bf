"""A router that begins every branch while the selector runs, and cancels the others."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.schema import QueryBundle


class SpeculativeRouterQueryEngine(RouterQueryEngine):
    """A RouterQueryEngine that answers sooner and computes more: it begins all branches at once.

    The retrievers of every branch run, so they must have no side effects. Branches that are not
    chosen are cancelled, in the server too. The answer is that of the plain router.
    """

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        response: RESPONSE_TYPE = asyncio_run(self._aquery(query_bundle))
        return response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        branches = [_Begun(engine, query_bundle) for engine in self._query_engines]
        chosen = copy(self)
        chosen._query_engines = list[BaseQueryEngine](branches)
        try:
            return await RouterQueryEngine._aquery(chosen, query_bundle)
        finally:
            for branch in branches:
                branch.task.cancel()
            await asyncio.gather(*(branch.task for branch in branches), return_exceptions=True)


class _Begun(BaseQueryEngine):
    """A query engine whose single query has already begun."""

    def __init__(self, engine: BaseQueryEngine, query: QueryBundle) -> None:
        super().__init__(callback_manager=engine.callback_manager)
        self.task: asyncio.Task[RESPONSE_TYPE] = asyncio.create_task(engine.aquery(query))

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _query(self, query_bundle: QueryBundle) -> Any:
        raise NotImplementedError("a branch that has begun is awaited")

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return await self.task
