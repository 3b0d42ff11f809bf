"""Sub-questions: a question is split, each part is answered, and the answers are joined."""

from __future__ import annotations

from llama_index.core.query_engine import RetrieverQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.tools import QueryEngineTool

from bench.recipes.gain import Answer, Side, main
from bench.recipes.retriever import Library

QUESTION = "How do sessions, variables and criteria work together?"
TOOL = "documentation"

# LlamaIndex asks for a list of these as JSON, which a small model gets wrong. So the server holds
# the answer to the form while it decodes.
SUB_QUESTION = {
    "type": "object",
    "properties": {
        "sub_question": {"type": "string", "minLength": 8, "maxLength": 60},
        "tool_name": {"enum": [TOOL]},
    },
    "required": ["sub_question", "tool_name"],
    "additionalProperties": False,
}
PARTS = {"type": "array", "items": SUB_QUESTION, "minItems": 2, "maxItems": 3}


def run(side: Side) -> Answer:
    llm = side.llm(max_tokens=24, context_window=2048)
    planner = side.llm(max_tokens=160, additional_kwargs={"constraint": {"json_schema": PARTS}})
    engine = RetrieverQueryEngine.from_args(
        Library(side.store, k=2), llm=llm, response_mode=ResponseMode.REFINE
    )
    tool = QueryEngineTool.from_defaults(engine, name=TOOL, description="How weftline works.")
    whole = SubQuestionQueryEngine.from_defaults(
        [tool],
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm=planner),
        verbose=False,
    )
    response = whole.query(QUESTION)
    found = (node.node.node_id for node in response.source_nodes)
    return Answer(str(response), sorted({id for id in found if ".md:" in id}))


if __name__ == "__main__":
    main(run)
