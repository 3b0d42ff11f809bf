"""A question to a LlamaIndex query engine: retrieval, then an answer from the passages found."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.core.utils import get_tokenizer

from bench.harness.llamaindex import synthesizer
from bench.harness.metrics import mean_seconds, ms_per_token
from bench.harness.stage import Stage
from bench.harness.workload import Point, Scale, Workload

CHUNK = 512  # tokens of a passage
PASSAGES = 24  # in the index
TOP_K = 8  # passages that an answer reads
OUTPUT = 40  # tokens of every call
PROMPT = 1100  # the most tokens of a template, an answer to refine, and the room for a new one
# The fewest tokens of a passage. All answers of a tree's level must fit into the prompt of one
# passage, or the LLM cannot plan ahead: at the quick scale these are eight of at most seven tokens.
LEAST = 72
GAP = 3  # tokens between two passages, and of a word that did not fit
DIMENSIONS = 256


class Words(BaseEmbedding):
    """Embeds a text by the hashes of its words, which takes next to no processor time."""

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = [0.0] * DIMENSIONS
        for word in re.findall(r"\w+", text.lower()):
            vector[zlib.crc32(word.encode()) % DIMENSIONS] += 1.0
        return vector

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def of_one_length(texts: Iterable[str]) -> list[str]:
    """Cut the texts to the tokens of the shortest.

    A synthesizer joins the passages and cuts the text again. With passages of one length, all
    systems get the same number of pieces, and so of calls.
    """
    counted = get_tokenizer()
    found = [text.split() for text in texts]
    least = min(len(counted(" ".join(words))) for words in found)
    for words in found:
        while len(counted(" ".join(words))) > least:
            words.pop()
        words += ["a"] * (least - len(counted(" ".join(words))))
    return [" ".join(words) for words in found]


def engine(stage: Stage, mode: str) -> RetrieverQueryEngine:
    """A query engine over new passages; each prompt has room for one."""
    scale, texts = stage.scale, stage.texts
    length = max(LEAST, scale.tokens(CHUNK))
    passages = of_one_length(
        texts.document(f"passage {stage.seed} {i}", length) for i in range(PASSAGES)
    )
    index = VectorStoreIndex([TextNode(text=text) for text in passages], embed_model=Words())
    longest = max(len(get_tokenizer()(text)) for text in passages) + GAP
    tokens = scale.tokens(OUTPUT)
    helper = PromptHelper(
        context_window=PROMPT + longest + tokens,
        num_output=tokens,
        chunk_size_limit=longest,
        chunk_overlap_ratio=0.0,
    )
    return RetrieverQueryEngine(
        index.as_retriever(similarity_top_k=TOP_K), synthesizer(stage, mode, tokens, helper)
    )


def points(scale: Scale, prepared: Mapping[str, float]) -> Sequence[Point]:
    """`aquery` sends a tree's leaves in parallel by itself; the usual `query` does not."""
    modes = {
        "tree, query": ("tree_summarize", False),
        "tree, aquery": ("tree_summarize", True),
        "refine, query": ("refine", False),
    }
    return [
        Point(name, {"mode": mode, "is_async": is_async}, x, (0, 250), quick=x == 0)
        for x, (name, (mode, is_async)) in enumerate(modes.items())
    ]


async def run(stage: Stage, point: Point) -> None:
    """Ask one question, after the index is built."""
    asked = engine(stage, point.values["mode"])
    question = "What does this text say about weaving?"
    async with stage.app("question") as app:
        if point.values["is_async"]:
            app.result = str(await asked.aquery(question))
        else:
            app.result = str(await asyncio.to_thread(asked.query, question))


WORKLOAD = Workload(
    title="RAG query engine (LlamaIndex)",
    points=points,
    run=run,
    metrics={"seconds": mean_seconds("question"), "ms per token": ms_per_token("question")},
)
