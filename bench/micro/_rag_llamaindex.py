"""The applications of `bench rag_graph` in LlamaIndex, as its documentation writes them.

The LLM, the embedder and the reranker are plain clients of the server's endpoints. Nothing is sent
ahead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from llama_index.core import PromptTemplate, VectorStoreIndex
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool, ToolMetadata
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank

from bench.micro import _rag_apps as apps
from bench.micro import _rag_web
from bench.micro._rag_apps import App, Task

WINDOW = 4096
# For a chat model LlamaIndex would take longer prompts of its own, with a system message.
PROMPTS: dict[str, Any] = {
    "text_qa_template": PromptTemplate(apps.ANSWER),
    "refine_template": PromptTemplate(apps.REFINE),
    "summary_template": PromptTemplate(apps.SUMMARY),
}


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
    made = get_response_synthesizer(llm=model, response_mode=mode, prompt_helper=helper, **PROMPTS)
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


class Planner(BaseQuestionGenerator):
    """The plan of all systems: four questions, for the one tool that there is."""

    def __init__(self, model: Weftline) -> None:
        self._model = model

    def generate(self, tools: Sequence[ToolMetadata], query: QueryBundle) -> list[SubQuestion]:
        asked = apps.PLAN.format(query_str=query.query_str)
        planned = json.loads(self._model.chat(_messages(asked)).message.content or "")
        name = tools[0].name or ""
        return [SubQuestion(sub_question=one, tool_name=name) for one in planned]

    async def agenerate(
        self, tools: Sequence[ToolMetadata], query: QueryBundle
    ) -> list[SubQuestion]:
        return await asyncio.to_thread(self.generate, tools, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        """It has none that can be changed."""


def sub_questions(url: str, task: Task) -> str:
    """SubQuestionQueryEngine with its parts at once, as it is by default."""
    model = llm(url, apps.OUTPUT, ignore_eos=True)
    engine = index(url, task).as_query_engine(
        llm=model, similarity_top_k=1, response_mode=ResponseMode.COMPACT, **PROMPTS
    )
    tool = QueryEngineTool.from_defaults(engine, name="text", description="The text.")
    whole = SubQuestionQueryEngine.from_defaults(
        [tool],
        llm=model,
        question_gen=Planner(llm(url, 220, constraint=apps.PLANNED)),
        response_synthesizer=get_response_synthesizer(
            llm=model, response_mode=ResponseMode.COMPACT, **PROMPTS
        ),
        verbose=False,
    )
    return str(whole.query(task.question))


PROGRAMS = {
    App.NAIVE: naive,
    App.ADVANCED: advanced,
    App.SEARCH: search,
    App.SUB_QUESTIONS: sub_questions,
}


def run(url: str, task: Task) -> str:
    """Run the program of a task."""
    return PROGRAMS[task.app](url, task)
