"""Plans the call with which a program decides where its query goes.

The call is that of a selector, which chooses one of several engines, or that of a generator of
sub-questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.base_selector import SingleSelection
from llama_index.core.output_parsers import SelectionOutputParser
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.question_gen.output_parser import SubQuestionOutputParser
from llama_index.core.question_gen.prompts import build_tools_text
from llama_index.core.selectors import (
    LLMSingleSelector,
    PydanticSingleSelector,
    llm_selectors,
)
from llama_index.llms.weftline.model.object_fields import are_asked_in_text
from llama_index.llms.weftline.plan.answer_symbols import Spec
from llama_index.llms.weftline.plan.call_plan import ARGUMENTS, CallPlan, Unplannable, plan_of

PARTS_KEY = "items"  # of LlamaIndex's list of sub-questions


@dataclass(frozen=True, slots=True)
class SelectorCall:
    """A plan with one call, and the transforms that make the decision of its answer."""

    plan: CallPlan
    reading: tuple[Spec, ...]


def selection_of(selector: Any, choices: Sequence[Any], query: str) -> SelectorCall:
    """The call of a selector of one engine. The decision is the engine's number, from 1.

    Raises Unplannable.
    """
    asked = {
        "num_choices": len(choices),
        "context_list": llm_selectors._build_choices_text(choices),
        "query_str": query,
    }
    if type(selector) is LLMSingleSelector:
        prompt = selector._prompt
        if type(prompt.output_parser) is not SelectionOutputParser:
            raise Unplannable("another parser reads the selection")
        plan = text_plan(selector._llm)
        plan.predict("select", prompt, **asked)
        path: Spec = {"op": "path", "keys": [0, "choice"]}
        return SelectorCall(plan, ({"op": "json_or_yaml", "fenced": False}, path))
    program = getattr(selector, "_selector_program", None)
    if type(selector) is not PydanticSingleSelector or type(program) is not FunctionCallingProgram:
        raise Unplannable("the selector is not known")
    if program.output_cls is not SingleSelection or are_asked_in_text(program._llm):
        raise Unplannable("the selection is asked for in another way")
    if program._tool_choice or program._allow_parallel_tool_calls or not program._tool_required:
        raise Unplannable("the selector's tool has other options")
    plan = plan_of(program._llm, SingleSelection)
    plan.predict("select", program.prompt, **asked)
    index: Spec = {"op": "path", "keys": ["index"]}
    return SelectorCall(plan, (ARGUMENTS, {"op": "json_object"}, index))


def division_of(generator: Any, tools: Sequence[Any], query: str) -> SelectorCall:
    """The call of a generator of sub-questions. The decision is their list. Raises Unplannable."""
    if type(generator) is not LLMQuestionGenerator:
        raise Unplannable("the generator of sub-questions is not known")
    prompt = generator._prompt
    if type(prompt.output_parser) is not SubQuestionOutputParser:
        raise Unplannable("another parser reads the sub-questions")
    plan = text_plan(generator._llm)
    plan.predict("divide", prompt, tools_str=build_tools_text(tools), query_str=query)
    return SelectorCall(plan, ({"op": "json_or_yaml", "key": PARTS_KEY},))


def text_plan(llm: Any) -> CallPlan:
    """An empty plan of an LLM whose answers are used as they are. Raises Unplannable."""
    plan = plan_of(llm)
    if plan.reading != ():
        raise Unplannable("the LLM has a parser of its own")
    return plan
