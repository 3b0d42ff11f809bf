"""The private members of LlamaIndex that the adapter reads: a release may remove each of them.

Then the programs that need it run call by call, with the same answers.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import (
    Settings,
    VectorStoreIndex,
    __version__,
)
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.indices.query.query_transform import (
    DecomposeQueryTransform,
    HyDEQueryTransform,
)
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.llms import LLM
from llama_index.core.memory import ChatSummaryMemoryBuffer
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.query_engine import (
    FLAREInstructQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.query_engine.flare.answer_inserter import LLMLookaheadAnswerInserter
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import (
    Accumulate,
    Refine,
    TreeSummarize,
    get_response_synthesizer,
)
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.selectors import (
    LLMSingleSelector,
    PydanticSingleSelector,
    llm_selectors,
)
from llama_index.core.tools import FunctionTool
from llama_index.llms.weftline import Weftline
from llama_index.llms.weftline.trace import span_handler

from tests.integrations import test_llama_routing as routing
from tests.integrations.conftest import RETRIEVES
from tests.integrations.recording import Recording
from tests.integrations.test_llama_ahead import nodes

OPTIONS = RETRIEVES

RULES = routing.RULES
ROOT = Path(__file__).parents[2] / "integrations" / "llamaindex" / "llama_index"
OURS = ("llama_index.llms.weftline", "llama_index.response_synthesizers.weftline")


def synthesis(mode: str) -> Callable[..., Any]:
    def run(index: Any, llm: Any) -> str:
        made = get_response_synthesizer(response_mode=mode, llm=llm)  # type: ignore[arg-type]
        return str(made.synthesize("What?", nodes()))

    return run


def asking(make: Any, query: str) -> Callable[..., Any]:
    return lambda index, llm: str(make(index, llm).query(query))


def selecting(index: Any, llm: Any) -> str:
    chooser = PydanticSingleSelector.from_defaults(llm=llm)
    return str(routing.router(index, llm, selector=chooser).query("red fox"))


def fusing(index: Any, llm: Any) -> str:
    made = QueryFusionRetriever([index.as_retriever()], llm=llm, num_queries=2, use_async=False)
    return str([(one.text, one.score) for one in made.retrieve("red fox")])


def weighing(index: Any, llm: Any) -> str:
    made = QueryFusionRetriever(
        [index.as_retriever()],
        llm=llm,
        num_queries=2,
        use_async=False,
        mode=FUSION_MODES("relative_score"),
    )
    synthesizer = get_response_synthesizer(llm=llm)
    return str(RetrieverQueryEngine(made, synthesizer).query("red fox"))


TREE, REFINE, ACCUMULATE = map(synthesis, ("tree_summarize", "refine", "accumulate"))
QUERY = asking(lambda index, llm: index.as_query_engine(llm=llm), "red fox")
ROUTER = asking(routing.router, "red fox")
PARTS = asking(lambda index, llm: routing.sub_questions(index, llm), "Which animals?")
HYDE = asking(routing.hyde, "red fox")
STEPS = asking(routing.steps, "red fox")
FLARE = asking(routing.flare, "red fox")

SYNTHESIS = ("_llm", "_output_cls", "_prompt_helper", "_streaming")
FLARED = ("_done_output_parser", "_query_task_output_parser", "_max_lookahead_query_tasks")
# The members of each class, and a program of which a call or a step is sent ahead with them.
MEMBERS: list[tuple[Any, tuple[str, ...], Callable[..., Any] | None]] = [
    (TreeSummarize, ("_summary_template", *SYNTHESIS), TREE),
    (Refine, ("_text_qa_template", "_refine_template", *SYNTHESIS), REFINE),
    (Refine, ("_structured_answer_filtering",), REFINE),
    (Accumulate, ("_text_qa_template", *SYNTHESIS), ACCUMULATE),
    (PromptHelper, ("_token_counter",), REFINE),
    (TokenTextSplitter, ("_split", "_merge"), TREE),
    (VectorStoreIndex, ("_transformations",), QUERY),
    (QueryFusionRetriever, ("_llm", "_retrievers"), fusing),
    (QueryFusionRetriever, ("_retriever_weights",), weighing),
    (VectorIndexRetriever, ("_embed_model", "_vector_store", "_kwargs", "_index"), QUERY),
    (VectorIndexRetriever, ("_vector_store_query_mode", "_build_vector_store_query"), QUERY),
    (RetrieverQueryEngine, ("_response_synthesizer", "_node_postprocessors"), QUERY),
    (RouterQueryEngine, ("_selector", "_metadatas", "_query_engines"), ROUTER),
    (LLMSingleSelector, ("_llm", "_prompt"), ROUTER),
    (PydanticSingleSelector, ("_selector_program",), selecting),
    (FunctionCallingProgram, ("_llm", "_tool_choice", "_tool_required"), selecting),
    (FunctionCallingProgram, ("_allow_parallel_tool_calls",), selecting),
    (SubQuestionQueryEngine, ("_question_gen", "_metadatas", "_query_engines"), PARTS),
    (SubQuestionQueryEngine, ("_response_synthesizer",), PARTS),
    (LLMQuestionGenerator, ("_llm", "_prompt"), PARTS),
    (HyDEQueryTransform, ("_llm", "_hyde_prompt", "_include_original"), HYDE),
    (TransformQueryEngine, ("_query_engine",), HYDE),
    (DecomposeQueryTransform, ("_llm", "_decompose_query_prompt"), None),
    (StepDecomposeQueryTransform, ("_llm", "_step_decompose_query_prompt"), STEPS),
    (MultiStepQueryEngine, ("_stop_fn", "_query_engine"), STEPS),
    (FLAREInstructQueryEngine, ("_llm", "_instruct_prompt", "_query_engine", *FLARED), FLARE),
    (FLAREInstructQueryEngine, ("_lookahead_answer_inserter",), FLARE),
    (LLMLookaheadAnswerInserter, ("_llm", "_answer_insert_prompt"), FLARE),
    # Without these there is no program to run: they are methods that the adapter's own classes
    # inherit or override, and a setting.
    (LLM, ("_get_messages", "_get_prompt"), None),
    (type(Settings), ("_prompt_helper",), None),
    (llm_selectors, ("_build_choices_text",), None),
    (RouterQueryEngine, ("_aquery", "_query"), None),
    (FunctionTool, ("_async_fn", "_field_defaults"), None),
    (ChatSummaryMemoryBuffer, ("_split_messages_summary_or_full_text",), None),
    (ChatSummaryMemoryBuffer, ("_summarize_oldest_chat_history",), None),
]
# Read with a default; a LlamaIndex without them works.
OPTIONAL = {"_multimodal", "_output_parser", "_response_padding_size"}
# Not LlamaIndex's: of a named tuple.
OTHERS = {"_replace"}
# Read with a default, or not read by this program. Nothing is logged.
QUIET = {
    "TreeSummarize._streaming",
    "LLMSingleSelector._llm",
    "PydanticSingleSelector._selector_program",
    "FunctionCallingProgram._llm",
    "LLMQuestionGenerator._llm",
}
NAMED = [(owner, name, run) for owner, names, run in MEMBERS for name in names]


def read_by_the_adapter() -> set[str]:
    """The private names of other objects in the adapter's code."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and not is_own(node.value):
                found.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(OURS):
                found |= {one.name for one in node.names}
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
                found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return {one for one in found if isinstance(one, str) and re.match("_[a-z]", one)}


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_the_list_is_whole() -> None:
    """Each private member that the adapter's code reads is in the list, and no other."""
    listed = {name for _, name, _ in NAMED}
    inherited = {"_query", "_field_defaults", "_async_fn"}
    assert read_by_the_adapter() == (listed - inherited) | OPTIONAL | OTHERS


@pytest.mark.parametrize(("owner", "name", "run"), NAMED)
def test_llama_index_has_it(owner: Any, name: str, run: Any) -> None:
    """The classes of the installed LlamaIndex have the members that the adapter reads."""
    bases = [one for one in getattr(owner, "__mro__", [owner]) if one is not object]
    sources = [inspect.getsource(one) for one in bases if "llama_index" in str(one)]
    assert any(re.search(rf"\b{name}\b", source) for source in sources), (
        f"LlamaIndex {__version__} has no {owner.__name__}.{name}, which the adapter reads"
    )


index = routing.index


def hide(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a member of a class from the adapter, as if a release had removed it."""

    def hidden(plain: Any) -> Any:
        def find(self: Any, wanted: str) -> Any:
            if wanted == name and sys._getframe(1).f_globals["__name__"].startswith(OURS):
                text = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(text, name=name, obj=self)
            return plain(self, wanted)

        return find

    monkeypatch.setattr(owner, "__getattribute__", hidden(owner.__getattribute__))
    if hasattr(owner, "__getattr__"):  # pydantic's, which is asked next
        monkeypatch.setattr(owner, "__getattr__", hidden(owner.__getattr__))


@pytest.mark.filterwarnings("ignore:asyncio_module:DeprecationWarning")  # LlamaIndex's own
@pytest.mark.parametrize(
    ("owner", "name", "run"),
    [pytest.param(*one, id=f"{one[0].__name__}.{one[1]}") for one in NAMED if one[2] is not None],
)
def test_without_it_the_answers_are_the_same(
    owner: Any,
    name: str,
    run: Any,
    index: VectorStoreIndex,
    recording: Recording,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A member is gone: the program's answer is that of calls one by one, no exception is raised,
    and a warning names the member. Of an object without it, what QUIET has is not known."""
    monkeypatch.setattr(span_handler, "_MISSING", set())
    plain = run(index, Weftline(max_tokens=64, context_window=3900, ahead=False, provenance=False))
    hide(owner, name, monkeypatch)
    assert run(index, Weftline(max_tokens=64, context_window=3900)) == plain
    warned = [one.getMessage() for one in caplog.records if "differs from" in one.getMessage()]
    assert all(name in one and __version__ in one for one in warned)
    assert bool(warned) == (f"{owner.__name__}.{name}" not in QUIET)
