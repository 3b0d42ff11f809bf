"""Plans the calls of index builds. All their nodes are known at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.indices.document_summary import DocumentSummaryIndex
from llama_index.core.indices.keyword_table import KeywordTableIndex
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.indices.tree import TreeIndex
from llama_index.core.schema import MetadataMode
from llama_index.core.settings import Settings
from llama_index.llms.weftline.plan.call_plan import (
    STRIP,
    CallPlan,
    Unplannable,
    can_plan,
    follow,
    plan_of,
    split,
)


def keywords(plan: CallPlan, index: Any, nodes: Sequence[Any]) -> None:
    """KeywordTableIndex: a call for each node."""
    for node in nodes:
        text = node.get_content(metadata_mode=MetadataMode.LLM)
        plan.predict("keywords", index.keyword_extract_template, text=text)


def tree(plan: CallPlan, index: Any, nodes: Sequence[Any]) -> None:
    """TreeIndex: a call for each group of nodes, then for groups of their summaries, and so on."""
    if not index.build_tree:
        return
    prompt, most = index.summary_template, index.num_children
    helper = Settings._prompt_helper or PromptHelper.from_llm_metadata(plan.llm.metadata)
    texts = [node.get_content(metadata_mode=MetadataMode.LLM) for node in nodes]
    known = True  # whether `texts` are texts, and not future answers
    while len(texts) > most:
        answers = []
        for start in range(0, len(texts), most):
            group = texts[start : start + most]
            splitter = helper.get_text_splitter_given_prompt(
                prompt, num_chunks=len(group), llm=plan.llm
            )
            if known:
                group = [_truncated(splitter, text) for text in group]
            elif plan.longest_answer > splitter.chunk_size:
                plan.complete = False  # an answer may be truncated
                return
            answers.append(plan.predict("summarize", prompt, context_str="\n".join(group)))
        # With use_async LlamaIndex goes on with the first character of each summary.
        if index._use_async or any(answer is None for answer in answers):
            plan.complete = len(answers) <= most
            return
        made = [answer for answer in answers if answer is not None]
        texts, known = [plan.symbols.text(answer.then(STRIP)) for answer in made], False


def _truncated(splitter: Any, text: str) -> str:
    """The text as `truncate` cuts it."""
    parts = split(splitter, text)
    if not parts:
        raise Unplannable("a node has no text")
    return parts[0]


def summaries(plan: CallPlan, index: Any, nodes: Sequence[Any]) -> None:
    """DocumentSummaryIndex: a synthesis for each document."""
    synthesizer = index._response_synthesizer
    documents: dict[str, list[str]] = {}
    for node in nodes:
        text = node.get_content(metadata_mode=MetadataMode.LLM)
        documents.setdefault(node.ref_doc_id, []).append(text)
    for texts in documents.values():
        follow(plan, synthesizer, index._summary_query, texts)
        if not plan.complete:
            # The rest of this document is planned when LlamaIndex reaches it.
            raise Unplannable("the summaries of a document may need packing again")


_BUILDS: Mapping[type, Callable[[CallPlan, Any, Sequence[Any]], None]] = {
    KeywordTableIndex: keywords,
    TreeIndex: tree,
    DocumentSummaryIndex: summaries,
}


def can_build(index: object) -> bool:
    """Whether builds of this index can be planned."""
    if type(index) is DocumentSummaryIndex:
        return can_plan(getattr(index, "_response_synthesizer", None))
    return type(index) in _BUILDS


def builder_of(index: Any) -> Any:
    """The LLM that the build of the index calls."""
    if type(index) is DocumentSummaryIndex:
        return index._response_synthesizer._llm
    return index._llm


def plan_build(index: Any, nodes: Sequence[Any]) -> CallPlan:
    """The calls of `index.build_index_from_nodes(nodes)`. Raises Unplannable."""
    synthesizer = getattr(index, "_response_synthesizer", None)
    plan = plan_of(builder_of(index), getattr(synthesizer, "_output_cls", None))
    _BUILDS[type(index)](plan, index, nodes)
    return plan
