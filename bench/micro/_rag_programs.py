"""Advanced RAG as programs of LangChain and LlamaIndex: queries, searches, rerank and an answer.

`bench rag_programs` runs both, plainly and ahead. `bench rag_graph` runs LlamaIndex's with each of
the server's passes, so its graph is the one that the adapter sends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from llama_index.core import VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.embeddings.weftline import WeftlineEmbedding
from llama_index.llms.weftline import Weftline
from llama_index.postprocessor.weftline import WeftlineRerank
from llama_index.vector_stores.weftline import WeftlineVectorStore

from bench.micro import _rag_apps as apps
from bench.micro._rag_apps import Task
from langchain_weftline import (
    ChatWeftline,
    WeftlineEmbeddings,
    accelerate,
)
from langchain_weftline import (
    WeftlineRerank as LangChainRerank,
)
from langchain_weftline import (
    WeftlineVectorStore as LangChainStore,
)

STORE = "docs"
Program = Callable[[str], str]  # the answer to a question
_ASK = "Answer from this text.\n{context}\nQuestion: {question}"
_PROSE: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": apps.OUTPUT,
    "additional_kwargs": {"ignore_eos": True},
}


def _joined(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def langchain(url: str, ahead: bool, top: int = 2) -> Program:
    """MultiQueryRetriever, WeftlineRerank and an answer."""
    llm = ChatWeftline(base_url=url, temperature=0, max_tokens=apps.OUTPUT)
    store = LangChainStore(WeftlineEmbeddings(base_url=url), base_url=url, store=STORE)
    found = ContextualCompressionRetriever(
        base_compressor=LangChainRerank(base_url=url, top_n=top),
        base_retriever=MultiQueryRetriever.from_llm(store.as_retriever(), llm),
    )
    given = {"context": found | _joined, "question": RunnablePassthrough()}
    chain = given | ChatPromptTemplate.from_template(_ASK) | llm | StrOutputParser()
    return (accelerate(chain) if ahead else chain).invoke


def llama_index(url: str, ahead: bool, top: int = 2) -> Program:
    """QueryFusionRetriever of four queries, WeftlineRerank, and a refine."""
    llm = Weftline(base_url=url, temperature=0, max_tokens=apps.OUTPUT, ahead=ahead)
    engine = _engine(url, llm, llm, top)
    return lambda question: str(engine.query(question))


def _engine(
    url: str, writer: Weftline, llm: Weftline, top: int, filters: MetadataFilters | None = None
) -> RetrieverQueryEngine:
    index = VectorStoreIndex.from_vector_store(
        WeftlineVectorStore(base_url=url, store=STORE),
        WeftlineEmbedding(base_url=url),
        transformations=[SentenceSplitter(chunk_size=apps.CHUNK, chunk_overlap=apps.OVERLAP)],
    )
    return RetrieverQueryEngine(
        QueryFusionRetriever(
            [index.as_retriever(similarity_top_k=apps.HITS, filters=filters)],
            llm=writer,
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=apps.HITS,
            use_async=False,
        ),
        get_response_synthesizer(llm=llm, response_mode="refine"),  # type: ignore[arg-type]
        node_postprocessors=[WeftlineRerank(base_url=url, top_n=top)],
    )


async def advanced(url: str, task: Task) -> str:
    """Index the chunks of a task, and answer its question: two requests."""
    about: dict[str, Any] = {"metadata": {"of": str(task.number)}}
    for reader in ("llm", "embed"):
        about[f"excluded_{reader}_metadata_keys"] = ["of"]
    nodes = [TextNode(text=text, **about) for text in task.chunks]
    store = WeftlineVectorStore(base_url=url, store=STORE)
    pipeline = IngestionPipeline(
        transformations=[WeftlineEmbedding(base_url=url)], vector_store=store
    )
    await pipeline.arun(nodes=nodes)
    lines = {"constraint": apps.LINES}
    writer = Weftline(base_url=url, temperature=0, max_tokens=160, additional_kwargs=lines)
    llm = Weftline(base_url=url, context_window=apps.WINDOW, **_PROSE)
    own = MetadataFilters(filters=[MetadataFilter(key="of", value=str(task.number))])
    return str(await _engine(url, writer, llm, apps.TOP, own).aquery(task.question))
