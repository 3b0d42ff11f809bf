"""LangChain on weftline: a chat model, and chains whose calls the server has begun.

chat_models   ChatWeftline, under the module name that LangChain's saved JSON refers to
model         its description, options, tools, connections, patience and errors
trace         finds which template, values and earlier answers made each prompt
lower         finds, without running it, the calls that a chain will make
ahead         accelerate and explain: the server begins these calls, and LangChain takes the results
compaction    WeftlineSummarizationMiddleware: summaries of long conversations that keep the cache
early_tools   EarlyTools: tools start while the model still writes
retrieval     embeddings, a vector store and a reranker that the server runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_weftline.ahead.accelerated_chain import (
    AcceleratedChain,
    accelerate,
    compile_chain,
)
from langchain_weftline.ahead.explanation import Explanation
from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.retrieval import WeftlineEmbeddings, WeftlineRerank, WeftlineVectorStore

if TYPE_CHECKING:
    from langchain_weftline.compaction import WeftlineSummarizationMiddleware
    from langchain_weftline.early_tools.early_start import EarlyTools

__all__ = [
    "AcceleratedChain",
    "ChatWeftline",
    "EarlyTools",
    "Explanation",
    "WeftlineEmbeddings",
    "WeftlineRerank",
    "WeftlineSummarizationMiddleware",
    "WeftlineVectorStore",
    "accelerate",
    "compile_chain",
]


def __getattr__(name: str) -> Any:
    """Import what needs LangChain's agents at its first use, because importing these takes 1 s."""
    if name == "WeftlineSummarizationMiddleware":
        from langchain_weftline.compaction import WeftlineSummarizationMiddleware

        return WeftlineSummarizationMiddleware
    if name == "EarlyTools":
        from langchain_weftline.early_tools.early_start import EarlyTools

        return EarlyTools
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
