"""The calls of LlamaIndex's metadata extractors, which know all their nodes from the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.extractors import (
    KeywordExtractor,
    QuestionsAnsweredExtractor,
    SummaryExtractor,
    TitleExtractor,
)
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode
from llama_index.llms.weftline.plan import Plan, Unplannable


def keywords(plan: Plan, extractor: Any, nodes: Sequence[Any]) -> None:
    """A call for each node."""
    prompt = PromptTemplate(template=extractor.prompt_template)
    for text in _contents(extractor, nodes):
        plan.predict("keywords", prompt, keywords=extractor.keywords, context_str=text)


def questions(plan: Plan, extractor: Any, nodes: Sequence[Any]) -> None:
    """A call for each node."""
    prompt = PromptTemplate(template=extractor.prompt_template)
    for text in _contents(extractor, nodes):
        plan.predict("questions", prompt, num_questions=extractor.questions, context_str=text)


def summaries(plan: Plan, extractor: Any, nodes: Sequence[Any]) -> None:
    """A call for each node."""
    prompt = PromptTemplate(template=extractor.prompt_template)
    for text in _contents(extractor, nodes):
        plan.predict("summary", prompt, context_str=text)


def titles(plan: Plan, extractor: Any, nodes: Sequence[Any]) -> None:
    """A call for each of a document's first nodes, and one on their answers."""
    one = PromptTemplate(template=extractor.node_template)
    all_ = PromptTemplate(template=extractor.combine_template)
    documents = extractor.separate_nodes_by_ref_id(extractor.filter_nodes(nodes))
    for members in documents.values():
        found = [plan.predict("title", one, context_str=node.text) for node in members]
        joined = ", ".join(plan.symbols.text(answer) for answer in found)
        plan.predict("combine", all_, context_str=joined)


_EXTRACTORS: Mapping[type, Callable[[Plan, Any, Sequence[Any]], None]] = {
    KeywordExtractor: keywords,
    QuestionsAnsweredExtractor: questions,
    SummaryExtractor: summaries,
    TitleExtractor: titles,
}


def can_extract(extractor: object) -> bool:
    """Whether this is an extractor that plans are made for."""
    return type(extractor) in _EXTRACTORS


def plan_extraction(extractor: Any, nodes: Sequence[Any]) -> Plan:
    """The calls of `extractor.aextract(nodes)`. Raises Unplannable."""
    if extractor.llm.output_parser is not None:
        raise Unplannable("the LLM's output parser changes answers")
    plan = Plan(extractor.llm)
    _EXTRACTORS[type(extractor)](plan, extractor, nodes)
    return plan


def _contents(extractor: Any, nodes: Sequence[Any]) -> list[str]:
    texts = [node for node in nodes if isinstance(node, TextNode)]
    if len(texts) < len(nodes) and not extractor.is_text_node_only:
        raise Unplannable("some nodes are no text")
    return [node.get_content(metadata_mode=extractor.metadata_mode) for node in texts]
