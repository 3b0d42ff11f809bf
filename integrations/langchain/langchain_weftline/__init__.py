"""LangChain on weftline: the chat model, and chains that run as one graph in the server."""

from __future__ import annotations

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.compiled import CompiledChain, compile_chain
from langchain_weftline.symbols import CannotCompile

__all__ = ["CannotCompile", "ChatWeftline", "CompiledChain", "compile_chain"]
