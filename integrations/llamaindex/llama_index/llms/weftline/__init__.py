"""LlamaIndex on weftline: an LLM whose synthesizers run as one graph in the server.

base      Weftline, the LLM
parsers   the transforms that replace LlamaIndex's output parsers
model     the LLM's requests and their JSON, its objects and its tools
trace     what LlamaIndex is doing, and what made each prompt
summary_memory  WeftlineSummaryMemory, a memory whose summaries keep the cache
plan      the calls that a part of LlamaIndex is about to make
run       graphs that were sent ahead, and how requests find their answers
"""

from __future__ import annotations

from llama_index.llms.weftline.ahead.agent_tools import early
from llama_index.llms.weftline.base import Weftline
from llama_index.llms.weftline.summary_memory import WeftlineSummaryMemory

__all__ = ["Weftline", "WeftlineSummaryMemory", "early"]
