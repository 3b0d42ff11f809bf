"""A batch of evaluations is one request. Its results and events are those of calls one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.base.response.schema import Response
from llama_index.core.evaluation import (
    AnswerRelevancyEvaluator,
    BatchEvalRunner,
    ContextRelevancyEvaluator,
    CorrectnessEvaluator,
    FaithfulnessEvaluator,
    GuidelineEvaluator,
    RelevancyEvaluator,
    batch_runner,
)
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.weftline import Weftline
from tenacity import wait_none

from tests.integrations.recording import Recording
from tests.integrations.test_llama_ahead import SUBMIT, counts
from tests.integrations.test_llama_routing import Events

# LlamaIndex's own, of its runner.
pytestmark = pytest.mark.filterwarnings("ignore:asyncio_module:DeprecationWarning")

RULES = [
    ("Critique the following response", '{"passing": true, "feedback": "It is specific."}'),
    ("User Query", "4.0\nIt is right."),
    ("[RESULT]", "It fits. [RESULT] 2"),
    ("Refine", "YES, after more context."),
    ("", "YES"),
]
QUERIES = ["Where is it?", "How long is it?", "Where is it?"]
ANSWERS = ["In Italy.", "405 km.", "In Italy."]
LONG = " ".join(f"The Tiber flows past town number {n}." for n in range(200))
CONTEXTS = [["The Tiber is in Italy."], ["It has 405 km.", "It is old."], [LONG]]


def judges(llm: Any) -> dict[str, Any]:
    kinds = (
        AnswerRelevancyEvaluator,
        ContextRelevancyEvaluator,
        CorrectnessEvaluator,
        FaithfulnessEvaluator,
        GuidelineEvaluator,
        RelevancyEvaluator,
    )
    return {kind.__name__: kind(llm=llm) for kind in kinds}


def ours(url: str, ahead: bool = True, **options: Any) -> Weftline:
    return Weftline(base_url=url, max_tokens=32, context_window=1400, ahead=ahead, **options)


def of_texts(runner: BatchEvalRunner) -> Any:
    references = {"CorrectnessEvaluator": {"reference": ["Italy", None, "Rome"]}}
    return runner.aevaluate_response_strs(QUERIES, ANSWERS, CONTEXTS, **references)  # type: ignore


def of_responses(runner: BatchEvalRunner) -> Any:
    made = [
        Response(answer, [NodeWithScore(node=TextNode(text=text)) for text in texts])
        for answer, texts in zip(ANSWERS, CONTEXTS, strict=True)
    ]
    return runner.aevaluate_responses(QUERIES, made)


def outcome(evaluate: Any, llm: Any, **options: Any) -> tuple[Any, list[str]]:
    """The results, and the events in no order, because the evaluations run at once."""
    events = Events(seen=[])
    root = get_dispatcher()
    root.add_event_handler(events)
    try:
        found = asyncio.run(evaluate(BatchEvalRunner(judges(llm), **options)))
    finally:
        root.event_handlers.remove(events)
    return found, sorted(map(str, events.seen))


@pytest.mark.parametrize("evaluate", [of_texts, of_responses])
def test_a_batch_is_one_request(proxy: Recording, evaluate: Any) -> None:
    """Six evaluators over three answers. The long context is packed into several prompts."""
    found, seen = outcome(evaluate, ours(proxy.url))
    assert counts(proxy) == (1, 0)
    [body] = proxy.bodies(SUBMIT)
    names = [call["name"] for call in body["calls"]]
    assert names.count("correctness") == names.count("guideline") == 3 and "refine" in names
    plain, events = outcome(evaluate, ours(proxy.url, ahead=False))
    assert (found, seen) == (plain, events)
    assert counts(proxy) == (1, len(names))
    assert {name: results[0].score for name, results in found.items()} == {
        "AnswerRelevancyEvaluator": 1.0,
        "ContextRelevancyEvaluator": 0.5,
        "CorrectnessEvaluator": 4.0,
        "FaithfulnessEvaluator": 1.0,
        "GuidelineEvaluator": 1.0,
        "RelevancyEvaluator": 1.0,
    }


@pytest.mark.parametrize("workers", [1, 2, 17, 18])
def test_any_number_of_workers_is_one_request(proxy: Recording, workers: int) -> None:
    """Workers say how many evaluations run at once, of which there are 18. The results are equal,
    and so are the events.
    """
    found = outcome(of_texts, ours(proxy.url), workers=workers)
    assert counts(proxy) == (1, 0)
    assert found == outcome(of_texts, ours(proxy.url, ahead=False), workers=workers)


class Mine(CorrectnessEvaluator):
    """An evaluator of the user's, whose calls are not known."""


def test_others_go_one_by_one(proxy: Recording) -> None:
    """An unknown evaluator, and one with another LLM, beside one that is sent ahead."""

    def evaluate(llm: Any) -> Any:
        other = ours(proxy.url, additional_kwargs={"seed": 1})
        kinds = {"a": CorrectnessEvaluator(llm), "b": Mine(llm), "c": CorrectnessEvaluator(other)}
        return asyncio.run(BatchEvalRunner(kinds).aevaluate_response_strs(QUERIES, ANSWERS))

    found = evaluate(ours(proxy.url))
    assert counts(proxy) == (1, 6)
    assert evaluate(ours(proxy.url, ahead=False)) == found


@pytest.mark.parametrize("missing", ["queries", "response_strs", "contexts_list"])
def test_what_an_evaluator_refuses(
    proxy: Recording, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LlamaIndex raises its own error after three attempts, and no graph is sent."""
    monkeypatch.setattr(batch_runner.eval_worker.retry, "wait", wait_none())  # type: ignore
    given = {"queries": QUERIES, "response_strs": ANSWERS, "contexts_list": CONTEXTS, missing: None}
    said = set()
    for ahead in (True, False):
        runner = BatchEvalRunner({"a": RelevancyEvaluator(ours(proxy.url, ahead))})
        with pytest.raises(ValueError, match="must be provided") as caught:
            asyncio.run(runner.aevaluate_response_strs(**given))
        said.add(str(caught.value))
    assert len(said) == 1 and proxy.bodies(SUBMIT) == []
