"""LangChain on weftline: the chat model, and chains that run as one graph in the server."""

from __future__ import annotations

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.run.accelerated import AcceleratedChain, accelerate
from langchain_weftline.run.compiled import CompiledChain, compile_chain
from langchain_weftline.run.explanation import Explanation

__all__ = [
    "AcceleratedChain",
    "ChatWeftline",
    "CompiledChain",
    "Explanation",
    "accelerate",
    "compile_chain",
]
