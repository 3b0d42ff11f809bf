"""The applications of `bench rag_graph` in LlamaIndex, as its documentation writes them.

The LLM, the embedder and the reranker are plain clients of the server's endpoints. Nothing is sent
ahead.
"""

from __future__ import annotations

import json
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.llms import ChatMessage
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank

from bench.micro import _rag_apps as apps
from bench.micro import _rag_web
from bench.micro._rag_apps import App, Task

WINDOW = 4096


def llm(url: str, tokens: int, **more: Any) -> Weftline:
    """A client of the chat endpoint."""
    return Weftline(
        base_url=url,
        temperature=0,
        max_tokens=tokens,
        context_window=WINDOW,
        additional_kwargs=more,
        ahead=False,
        provenance=False,
    )


def synthesized(url: str, task: Task, nodes: list[NodeWithScore], mode: ResponseMode) -> str:
    """An answer from chunks; each prompt has room for one."""
    model = llm(url, apps.OUTPUT, ignore_eos=True)
    # A chunk has at most 1.2 times as many of LlamaIndex's tokens, and two do not fit.
    longest = max(len(one.node.get_content().split()) for one in nodes) * 2
    helper = PromptHelper(context_window=WINDOW, num_output=apps.OUTPUT, chunk_size_limit=longest)
    made = get_response_synthesizer(llm=model, response_mode=mode, prompt_helper=helper)
    return str(made.synthesize(task.question, nodes))


def index(url: str, task: Task) -> VectorStoreIndex:
    """An index of the chunks, in this process."""
    embedder = WeftlineEmbedding(model_name="minilm", base_url=url)
    return VectorStoreIndex([TextNode(text=text) for text in task.chunks], embed_model=embedder)


def naive(url: str, task: Task) -> str:
    """A query engine with a tree."""
    found = index(url, task).as_retriever(similarity_top_k=apps.TOP).retrieve(task.question)
    return synthesized(url, task, found, ResponseMode.TREE_SUMMARIZE)


def advanced(url: str, task: Task) -> str:
    """Expansion, a search for each query, reranking, and a refined answer."""
    indexed = index(url, task)
    asked = apps.EXPAND.format(query_str=task.question)
    expanded = llm(url, 160, constraint=apps.QUERIES).chat(_messages(asked)).message.content
    retriever = indexed.as_retriever(similarity_top_k=apps.HITS)
    found: dict[str, NodeWithScore] = {}
    for query in json.loads(expanded or ""):
        for one in retriever.retrieve(query):
            found.setdefault(one.node.node_id, one)
    rerank = WeftlineRerank(model="minilm", top_n=apps.TOP, base_url=url)
    top = rerank.postprocess_nodes(list(found.values()), QueryBundle(task.question))
    return synthesized(url, task, top, ResponseMode.REFINE)


def search(url: str, task: Task) -> str:
    """A draft, a verdict, a search and an answer, one after the other."""
    model = llm(url, apps.OUTPUT, ignore_eos=True)
    draft = model.chat(_messages(apps.DRAFT.format(query_str=task.question))).message.content
    asked = apps.JUDGE.format(query_str=task.question, draft=draft)
    verdict = llm(url, 8, constraint=apps.VERDICT).chat(_messages(asked)).message.content
    if apps.NEEDS not in (verdict or ""):
        return draft or ""
    context = "\n\n".join(one["text"] for one in _rag_web.search(task.question))
    asked = apps.ANSWER.format(context_str=context, query_str=task.question)
    return model.chat(_messages(asked)).message.content or ""


def _messages(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


PROGRAMS = {App.NAIVE: naive, App.ADVANCED: advanced, App.SEARCH: search}


def run(url: str, task: Task) -> str:
    """Run the program of a task."""
    return PROGRAMS[task.app](url, task)
