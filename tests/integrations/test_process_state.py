"""The adapters change no function, class or setting of the process: before, during and after work.

Each program runs in a process of its own and prints what has changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integrations.conftest import RETRIEVES

OPTIONS = RETRIEVES
LLAMA_INDEX = '''
import asyncio

import llama_index.core.evaluation
import llama_index.core.ingestion
from llama_index.core import *
from llama_index.core.evaluation import BatchEvalRunner, CorrectnessEvaluator
from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.schema import TextNode

from tests.integrations.process_state import ProcessState

documents = [Document(text=f"The fox number {n} is red.", doc_id=f"d{n}") for n in range(3)]
KeywordTableIndex.from_documents(documents, llm=MockLLM())  # what it sets at its first use
original = BaseIndex.__dict__["from_documents"]
handlers = list(get_dispatcher().span_handlers)
state = ProcessState("llama_index.core", "llama_index_instrumentation")

from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.vector_stores.weftline import WeftlineVectorStore

llm = Weftline(max_tokens=8, context_window=4000)
embeds, store = WeftlineEmbedding(), WeftlineVectorStore()
print("made", state.changed(), BaseIndex.__dict__["from_documents"] is original)

during = []


class Look(BaseEventHandler):
    """Looks at the process whenever LlamaIndex does something."""

    def handle(self, event, **rest):
        during.append(state.changed())


get_dispatcher().add_event_handler(Look())
nodes = [TextNode(text=f"The crow number {n} is black.", id_=f"n{n}") for n in range(3)]
context = StorageContext.from_defaults(vector_store=store)
keywords = KeywordTableIndex.from_documents(documents, llm=llm)
keywords.insert_nodes(nodes[:1])
index = VectorStoreIndex.from_documents(documents, context, embed_model=embeds)
index.insert_nodes(nodes[:1])
asyncio.run(index.ainsert_nodes(nodes[1:2]))
pipeline = IngestionPipeline(transformations=[embeds], vector_store=store)
asyncio.run(pipeline.arun(nodes=nodes[2:]))
judge = CorrectnessEvaluator(llm, parser_function=lambda said: (3.0, said))
runner = BatchEvalRunner({"a": judge})
runner.evaluate_response_strs(["Who?"], ["The fox."])
runner.evaluate_queries(SummaryIndex(nodes).as_query_engine(llm=llm), ["Who?"])
print("used", state.changed(), BaseIndex.__dict__["from_documents"] is original)
print("during", len(during) > 20, [one for one in during if one])
root = get_dispatcher()
print("handlers", root.span_handlers[:-1] == handlers, type(root.span_handlers[-1]).__name__)
'''

LANGCHAIN = '''
import asyncio

import langchain_core.language_models
import langchain_openai
import langgraph.graph
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tracers import context

from tests.integrations.process_state import ProcessState

hooks = list(context._configure_hooks)
state = ProcessState("langchain_core", "langchain_openai", "langgraph", "openai")

from langchain_weftline import ChatWeftline, accelerate

llm = ChatWeftline()
print("made", state.changed())

during = []


class Look(BaseCallbackHandler):
    """Looks at the process whenever LangChain does something."""

    def on_chain_start(self, *args, **rest):
        during.append(state.changed())

    on_chat_model_start = on_llm_end = on_chain_end = on_chain_start


chain = ChatPromptTemplate.from_template("Say {it}.") | llm | StrOutputParser()
how = {"callbacks": [Look()]}
chain.invoke({"it": "a"}, how)
asyncio.run(chain.ainvoke({"it": "b"}, how))
accelerate(chain).invoke({"it": "c"}, how)
accelerate(chain).invoke({"it": "d"}, how)
print("used", state.changed())
print("during", len(during) > 8, [one for one in during if one])
print("hooks", context._configure_hooks[:-1] == hooks)
'''


def said_by(program: str, url: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | {"WEFTLINE_BASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_llama_index(url: str) -> None:
    """Objects are made, then indexes built, nodes inserted and answers evaluated. LlamaIndex keeps
    its own functions all the time. Its list of span handlers has one more."""
    assert said_by(LLAMA_INDEX, url) == [
        "made [] True",
        "used [] True",
        "during True []",
        "handlers True _Handler",
    ]


def test_langchain(url: str) -> None:
    """A model is made; then a chain runs plain, accelerated and compiled. LangChain, LangGraph and
    the openai client keep their own functions. LangChain's list of hooks has one more."""
    assert said_by(LANGCHAIN, url) == ["made []", "used []", "during True []", "hooks True"]


# Pandas and pydantic change the filters of warnings when they are imported and used. So a program
# cannot tell who changed them.
GLOBAL = re.compile(
    r"\bsetattr\((?!self,)|\bimport warnings|\benviron\[[^]]+\] = |\bputenv\(|\benviron\.(?!get\()"
    r"|\bbasicConfig\(|\.setLevel\(|\.addHandler\(|\bset_event_loop"
)


def test_no_line_changes_what_is_global() -> None:
    """No line of the adapters sets an attribute of another object by name, or changes the
    environment, the warnings, the logging or the event loops.

    `weftline compare` runs programs in processes of its own, whose classes it changes on purpose.
    """
    root = Path(__file__).parents[2]
    folders = ("integrations/langchain/langchain_weftline", "integrations/llamaindex/llama_index")
    files = [path for one in (*folders, "client/weftline") for path in (root / one).rglob("*.py")]
    files = [path for path in files if not path.name.endswith("program_watch.py")]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert len(files) > 100
    found = [line.strip() for line in lines if GLOBAL.search(line)]
    assert found == ["setattr(function, _MARK, _Marked(name, effects, timeout_s))"], (
        "the mark on a user's function that the decorator `@tool` gets is known"
    )
