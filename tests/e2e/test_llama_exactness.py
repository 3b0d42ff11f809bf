"""LlamaIndex on the real model in float32: a graph gives the same text as its calls one by one."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from llama_index.core import Document, DocumentSummaryIndex, MockEmbedding
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.weftline import Weftline
from pydantic import BaseModel, Field

from tests.integrations.recording import recorded

TEXTS = (
    "The Tiber rises on Mount Fumaiolo in the Apennines and flows south for 405 kilometres. "
    "Rome lies on it, and at Ostia it reaches the sea.",
    "The Arno rises on Mount Falterona, flows west through Florence and Pisa, and is 241 "
    "kilometres long. It has often flooded Florence, worst of all in 1966.",
    "The Po is the longest river of Italy: 652 kilometres from the Cottian Alps through Turin to a "
    "wide delta on the Adriatic.",
)
MODES = ("accumulate", "compact_accumulate", "tree_summarize", "refine", "compact")
QUESTION = "Which rivers are these?"


class Rivers(BaseModel):
    """The rivers that a text names."""

    # A model of this size would repeat itself in a longer name, up to its last token.
    names: list[Annotated[str, Field(max_length=12)]] = Field(max_length=3)
    longest: str = Field(max_length=20)


def nodes(times: int) -> list[NodeWithScore]:
    """Texts that are too long for one prompt."""
    return [NodeWithScore(node=TextNode(text=" ".join([text] * times)), score=1) for text in TEXTS]


def synthesized(llm: Weftline, mode: str, times: int, **options: Any) -> Any:
    made: Any = get_response_synthesizer(response_mode=ResponseMode(mode), llm=llm, **options)
    made._response_padding_size = 20
    return made.synthesize(QUESTION, nodes(times)).response


def both(url: str, **options: Any) -> tuple[Weftline, Weftline]:
    """An LLM that sends graphs ahead, and one that does not."""
    given = {"base_url": url, "temperature": 0, **options}
    return Weftline(**given), Weftline(ahead=False, **given)


@pytest.mark.parametrize("mode", MODES)
def test_a_synthesis(model_url: str, mode: str) -> None:
    """Both ways give the same text token for token, and ours is one request."""
    with recorded(model_url) as proxy:
        ours, plain = both(proxy.url, max_tokens=12, context_window=250)
        answer = synthesized(ours, mode, 2)
        assert (len(proxy.bodies("/v1/submit")), len(proxy.bodies("/v1/chat/completions"))) == (
            1,
            0,
        )
        assert synthesized(plain, mode, 2) == answer
        assert len(answer) > 10


def test_an_extractor(model_url: str) -> None:
    """An extractor's calls give the same both ways."""
    ours, plain = both(model_url, max_tokens=12, context_window=1000)
    chunks = [found.node for found in nodes(1)]
    found = KeywordExtractor(llm=ours).extract(chunks)
    assert found == KeywordExtractor(llm=plain).extract(chunks)


def test_document_summaries(model_url: str) -> None:
    """A DocumentSummaryIndex gives the same summary of a document that fills several prompts."""

    def summary(llm: Weftline) -> str:
        embeddings = MockEmbedding(embed_dim=4)
        document = Document(text=" ".join(TEXTS * 2), id_="rivers")
        index = DocumentSummaryIndex.from_documents([document], llm=llm, embed_model=embeddings)
        return str(index.get_document_summary("rivers"))

    with recorded(model_url) as proxy:
        ours, plain = both(proxy.url, max_tokens=12, context_window=250)
        found = summary(ours)
        assert (len(proxy.bodies("/v1/submit")), len(proxy.bodies("/v1/chat/completions"))) == (
            1,
            0,
        )
        assert summary(plain) == found != ""


@pytest.mark.parametrize(("mode", "with_tools"), [("tree_summarize", False), ("refine", True)])
def test_an_object(model_url: str, mode: str, with_tools: bool) -> None:
    """A model of 135 million parameters makes the requested object, in one request."""
    with recorded(model_url) as proxy:
        options = {"is_function_calling_model": with_tools, "context_window": 480}
        ours, plain = both(proxy.url, max_tokens=60, **options)
        made = synthesized(ours, mode, 4, output_cls=Rivers)
        assert isinstance(made, Rivers)
        assert (len(proxy.bodies("/v1/submit")), len(proxy.bodies("/v1/chat/completions"))) == (
            1,
            0,
        )
        assert synthesized(plain, mode, 4, output_cls=Rivers) == made
