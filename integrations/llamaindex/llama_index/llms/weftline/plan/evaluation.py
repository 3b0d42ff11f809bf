"""Plans the calls of a BatchEvalRunner. What it evaluates is known at the start.

The runner's `workers` bound how many calls the client has in flight, so that they do not overload a
server. Calls that are sent ahead are one request, and the server schedules them. So `workers`
bounds only how many evaluations read their results at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.evaluation import (
    AnswerRelevancyEvaluator,
    BatchEvalRunner,
    ContextRelevancyEvaluator,
    CorrectnessEvaluator,
    FaithfulnessEvaluator,
    GuidelineEvaluator,
    RelevancyEvaluator,
)
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.settings import Settings
from llama_index.llms.weftline.plan.call_plan import CallPlan, Unplannable, follow, plan_of, split

NO_REFERENCE = "(NO REFERENCE ANSWER SUPPLIED)"  # LlamaIndex's words


@dataclass(frozen=True, slots=True)
class EvaluatorInput:
    """What an evaluator gets."""

    query: str | None
    response: str | None
    contexts: Sequence[str] | None
    others: Mapping[str, Any]


def correctness(plan: CallPlan, judge: Any, case: EvaluatorInput) -> None:
    """CorrectnessEvaluator: a call."""
    plan.predict(
        "correctness",
        judge._eval_template,
        query=case.query,
        generated_answer=case.response,
        reference_answer=case.others.get("reference") or NO_REFERENCE,
    )


def guideline(plan: CallPlan, judge: Any, case: EvaluatorInput) -> None:
    """GuidelineEvaluator: a call."""
    template, rules = judge._eval_template, judge._guidelines
    plan.predict("guideline", template, query=case.query, response=case.response, guidelines=rules)


def answer_relevancy(plan: CallPlan, judge: Any, case: EvaluatorInput) -> None:
    """AnswerRelevancyEvaluator: a call."""
    plan.predict("relevancy", judge._eval_template, query=case.query, response=case.response)


def faithfulness(plan: CallPlan, judge: Any, case: EvaluatorInput) -> None:
    """FaithfulnessEvaluator: a query over the contexts."""
    _over_contexts(plan, judge, case, case.response)


def relevancy(plan: CallPlan, judge: Any, case: EvaluatorInput) -> None:
    """RelevancyEvaluator: a query over the contexts."""
    _over_contexts(plan, judge, case, f"Question: {case.query}\nResponse: {case.response}")


def context_relevancy(plan: CallPlan, judge: Any, case: EvaluatorInput) -> None:
    """ContextRelevancyEvaluator: a query over the contexts."""
    _over_contexts(plan, judge, case, case.query)


def _over_contexts(plan: CallPlan, judge: Any, case: EvaluatorInput, query: Any) -> None:
    """The calls of a synthesis over the chunks of the contexts."""
    transformations = Settings.transformations
    if len(transformations) != 1 or type(transformations[0]) is not SentenceSplitter:
        raise Unplannable("the contexts go through other transformations")
    contexts = case.contexts or ()
    chunks = [part for text in contexts for part in split(transformations[0], text)]
    made: Any = get_response_synthesizer(
        llm=plan.llm,
        text_qa_template=judge._eval_template,
        refine_template=judge._refine_template,
    )
    if chunks:
        follow(plan, made, query, chunks)


# The planner of each evaluator, and what it refuses to work without.
_JUDGES: Mapping[type, tuple[Callable[[CallPlan, Any, EvaluatorInput], None], tuple[str, ...]]] = {
    CorrectnessEvaluator: (correctness, ("query", "response")),
    GuidelineEvaluator: (guideline, ("query", "response")),
    AnswerRelevancyEvaluator: (answer_relevancy, ("query", "response")),
    FaithfulnessEvaluator: (faithfulness, ("response", "contexts")),
    RelevancyEvaluator: (relevancy, ("query", "response", "contexts")),
    ContextRelevancyEvaluator: (context_relevancy, ("query", "contexts")),
}


def can_evaluate(runner: object) -> bool:
    """Whether evaluations of this runner can be planned."""
    return type(runner) is BatchEvalRunner and judge_of(runner) is not None


def judge_of(runner: Any) -> Any:
    """The LLM of the first evaluator that can be planned; None if there is none."""
    judges = (judge for judge in runner.evaluators.values() if type(judge) in _JUDGES)
    return next((judge._llm for judge in judges), None)


def plan_evaluations(runner: Any, given: Mapping[str, Any]) -> CallPlan:
    """The calls of an evaluation of responses or texts, of evaluators with one LLM.

    Raises Unplannable.
    """
    llm = judge_of(runner)
    plan = plan_of(llm)
    for judge, case in _cases(runner, given):
        follow_judge, needs = _JUDGES.get(type(judge), (None, ()))
        if follow_judge is None or judge._llm is not llm:
            continue  # its calls go one by one
        if any(getattr(case, name) is None for name in needs):
            raise Unplannable("an evaluator refuses what it is given")
        if case.others.get("sleep_time_in_seconds"):
            raise Unplannable("an evaluator waits before its calls")
        follow_judge(plan, judge, case)
    return plan


def _cases(runner: Any, given: Mapping[str, Any]) -> Iterator[tuple[Any, EvaluatorInput]]:
    """Each evaluator with each case, in LlamaIndex's order."""
    listed = given.get("eval_kwargs_lists") or {}
    by_judge = isinstance(next(iter(listed.values()), None), Mapping)
    named = [given.get(name) for name in ("queries", "response_strs", "contexts_list", "responses")]
    count = max(len(one) for one in named if one is not None)
    queries, texts, contexts, responses = (one or [None] * count for one in named)
    for at in range(count):
        text, found = texts[at], contexts[at]
        if responses[at] is not None:
            text = responses[at].response
            found = [node.get_content() for node in responses[at].source_nodes]
        for name, judge in runner.evaluators.items():
            others = listed.get(name, {}) if by_judge else listed
            values = {key: value[at] for key, value in others.items()}
            yield judge, EvaluatorInput(queries[at], text, found, values)
