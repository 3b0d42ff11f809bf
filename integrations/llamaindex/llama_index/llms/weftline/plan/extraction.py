"""Plans the calls of LlamaIndex's metadata extractors. All their nodes are known at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llama_index.core.async_utils import DEFAULT_NUM_WORKERS
from llama_index.core.extractors import (
    KeywordExtractor,
    PydanticProgramExtractor,
    QuestionsAnsweredExtractor,
    SummaryExtractor,
    TitleExtractor,
)
from llama_index.core.program import FunctionCallingProgram, LLMTextCompletionProgram
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import TextNode
from llama_index.llms.weftline.model.object_fields import as_tool_fields
from llama_index.llms.weftline.plan.call_plan import CallPlan, Unplannable, plan_of


def keywords(plan: CallPlan, extractor: Any, nodes: Sequence[Any]) -> None:
    """KeywordExtractor: a call for each node."""
    prompt = PromptTemplate(template=extractor.prompt_template)
    for text in _contents(extractor, nodes):
        plan.predict("keywords", prompt, keywords=extractor.keywords, context_str=text)


def questions(plan: CallPlan, extractor: Any, nodes: Sequence[Any]) -> None:
    """QuestionsAnsweredExtractor: a call for each node."""
    prompt = PromptTemplate(template=extractor.prompt_template)
    for text in _contents(extractor, nodes):
        plan.predict("questions", prompt, num_questions=extractor.questions, context_str=text)


def summaries(plan: CallPlan, extractor: Any, nodes: Sequence[Any]) -> None:
    """SummaryExtractor: a call for each node."""
    prompt = PromptTemplate(template=extractor.prompt_template)
    for text in _contents(extractor, nodes):
        plan.predict("summary", prompt, context_str=text)


def titles(plan: CallPlan, extractor: Any, nodes: Sequence[Any]) -> None:
    """TitleExtractor: a call for each of a document's first nodes, and one on their answers."""
    one = PromptTemplate(template=extractor.node_template)
    all_ = PromptTemplate(template=extractor.combine_template)
    documents = extractor.separate_nodes_by_ref_id(extractor.filter_nodes(nodes))
    for members in documents.values():
        found = [plan.predict("title", one, context_str=node.text) for node in members]
        known = [plan.symbols.text(answer) for answer in found if answer is not None]
        if len(known) < len(found):
            plan.complete = False
            return
        plan.predict("combine", all_, context_str=", ".join(known))


def programs(plan: CallPlan, extractor: Any, nodes: Sequence[Any]) -> None:
    """PydanticProgramExtractor: a call of its program for each node."""
    program = extractor.program
    fields: Mapping[str, Any] = {}
    if type(program) is FunctionCallingProgram:
        fields = as_tool_fields(
            program.output_cls,
            program._tool_choice,
            program._tool_required,
            program._allow_parallel_tool_calls,
        )
    for node in nodes:
        if isinstance(node, TextNode) or not extractor.is_text_node_only:
            given = extractor.extract_template_str.format(
                context_str=node.get_content(metadata_mode=extractor.metadata_mode),
                class_name=program.output_cls.__name__,
            )
            plan.ask("extract", program.prompt, fields, **{extractor.input_key: given})


_EXTRACTORS: Mapping[type, Callable[[CallPlan, Any, Sequence[Any]], None]] = {
    KeywordExtractor: keywords,
    PydanticProgramExtractor: programs,
    QuestionsAnsweredExtractor: questions,
    SummaryExtractor: summaries,
    TitleExtractor: titles,
}
_PROGRAMS = (FunctionCallingProgram, LLMTextCompletionProgram)


def can_extract(extractor: object) -> bool:
    """Whether the calls of this extractor can be planned."""
    return type(extractor) in _EXTRACTORS and llm_of(extractor) is not None


def llm_of(extractor: Any) -> Any:
    """The LLM that the extractor calls, or None if it is not known."""
    if type(extractor) is not PydanticProgramExtractor:
        return extractor.llm
    program: Any = extractor.program
    return program._llm if type(program) in _PROGRAMS else None


def plan_extraction(extractor: Any, nodes: Sequence[Any]) -> CallPlan:
    """The calls of `extractor.aextract(nodes)`. Raises Unplannable."""
    llm = llm_of(extractor)
    if extractor.num_workers != DEFAULT_NUM_WORKERS:
        raise Unplannable("num_workers says how many calls may run at once")
    of_objects = type(extractor) is PydanticProgramExtractor
    plan = plan_of(llm, extractor.program.output_cls if of_objects else None)
    _EXTRACTORS[type(extractor)](plan, extractor, nodes)
    return plan


def _contents(extractor: Any, nodes: Sequence[Any]) -> list[str]:
    texts = [node for node in nodes if isinstance(node, TextNode)]
    if len(texts) < len(nodes) and not extractor.is_text_node_only:
        raise Unplannable("some nodes are not text")
    return [node.get_content(metadata_mode=extractor.metadata_mode) for node in texts]
