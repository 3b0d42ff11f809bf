"""A retriever that compresses the documents that it finds: its calls on the documents join the
graph.

The model is asked about each document by itself, or once about all of them. Where the server has
found the documents, the server asks about each document as soon as the list is there (an each
step). Otherwise the client needs the documents first, because their number decides how many calls
there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import BaseOutputParser, StrOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lower.classic import question_of_each
from langchain_weftline.lower.maps import Maps
from langchain_weftline.lower.searches import check_unheard
from langchain_weftline.lower.steps import Fetch, Fork, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    AnswerMessage,
    CannotCompile,
    Ref,
    Text,
    Unknown,
    is_symbolic,
)
from langchain_weftline.retrieval.vectorstore import documents_of

_COMPRESSORS = "langchain_classic.retrievers.document_compressors"
_PARSERS = frozenset(
    {
        f"{_COMPRESSORS}.chain_extract.NoOutputParser",
        "langchain_classic.output_parsers.boolean.BooleanOutputParser",
    }
)
_WHY = "the client keeps of the documents what the model says"


class Compression:
    """Lowers ContextualCompressionRetriever with LLMChainExtractor, LLMChainFilter or
    LLMListwiseRerank.
    """

    def __init__(self, lowering: Lowerer, maps: Maps) -> None:
        self._lowering = lowering
        self._maps = maps

    def retriever(self, step: Step, value: Any) -> Steps:
        """The documents, compressed. Before anything runs, the lowering decides whether LangChain
        must run the retriever."""
        compressing = step.runnable
        check_unheard(self._lowering, step)
        compressor, base = compressing.base_compressor, compressing.base_retriever
        if not isinstance(base, BaseRetriever):
            raise CannotCompile(compressing, "what finds its documents is no retriever")
        if not isinstance(value, (str, Text, Unknown)) and not (
            isinstance(value, Ref) and value.is_text
        ):
            raise CannotCompile(compressing, "its query is not one text")
        ranks = _name(compressor) == f"{_COMPRESSORS}.listwise_rerank.LLMListwiseRerank"
        chain = None if ranks else _asking(compressing)
        found = yield from self._lowering.step(step.of(base, "found"), value)
        if chain is None:
            return (yield from self._ranked(step, found, value))
        if isinstance(found, Ref) and found.make is documents_of:
            try:
                with self._lowering.attempt():
                    outputs = self._in_server(step, chain, found, value)
            except CannotCompile as error:
                self._lowering.note(step.of(chain), error.reason)
            else:
                keep = _Kept(compressor, chain.last)
                given = {"documents": found, "outputs": outputs}
                return (yield from self._lowering.run(step.of(keep), given, _WHY))
        documents = (yield Fetch(found)) if is_symbolic(found) else found
        parts = [UNKNOWN] if isinstance(documents, Unknown) else documents
        asked = [
            self._lowering.step(
                step.of(chain, f"compress[{'…' if document is UNKNOWN else number}]"),
                {"question": value, "context": _text_of(document)},
            )
            for number, document in enumerate(parts)
        ]
        given = {"documents": documents, "outputs": (yield Fork(tuple(asked)))}
        return (yield from self._lowering.run(step.of(_Kept(compressor)), given, _WHY))

    def _in_server(self, step: Step, chain: Any, found: Ref, value: Any) -> Ref:
        """The texts that the model gives for each of the documents that the server finds.

        Raises CannotCompile where the client makes the query: only calls outside of a body wait for
        its texts.
        """
        if isinstance(value, Ref) and "." in value.var:
            raise CannotCompile(step.runnable, "the client makes its query")
        texts: Runnable[Any, Any] = RunnableSequence(chain.first, *chain.middle)

        def body(item: Ref) -> Steps:
            text = item.then({"op": "path", "keys": ["text"]}, is_text=True)
            answer = yield from self._lowering.step(
                Step(texts, step.config), {"question": value, "context": text}
            )
            return answer.text if isinstance(answer, AnswerMessage) else answer

        hits = Ref(found.var, found.transforms, is_text=False)
        return self._maps.over(step.of(chain, "compress"), hits, body)

    def _ranked(self, step: Step, found: Any, value: Any) -> Steps:
        """One call on all documents, if there are any."""
        compressor = step.runnable.base_compressor
        documents = (yield Fetch(found)) if is_symbolic(found) else found
        if not isinstance(documents, Unknown) and not documents:
            return []
        given = {"documents": documents, "query": value}
        ranked = yield from self._lowering.step(step.of(compressor.reranker, "rank"), given)
        first = step.of(_First(compressor))
        return (yield from self._lowering.run(first, ranked, "the client takes the first ones"))


def _asking(compressing: Any) -> Any:
    """The prompt, model and parser that a compressing retriever runs on each document.

    Raises CannotCompile where LangChain does something else, or nobody knows how it counts calls.
    """
    chain = question_of_each(compressing)
    if chain is None:
        reason = (
            f"its {type(compressing.base_compressor).__name__} is not among those that are known"
        )
        raise CannotCompile(compressing, reason)
    if type(chain) is not RunnableSequence or len(chain.steps) != 3:
        raise CannotCompile(compressing, "its chain is of another class than usual")
    prompt, model, parser = chain.steps
    while isinstance(model, RunnableBindingBase):
        model = model.bound
    if not isinstance(prompt, BasePromptTemplate) or type(model) is not ChatWeftline:
        raise CannotCompile(compressing, "its chain does not ask a ChatWeftline")
    if type(parser) is not StrOutputParser and _name(parser) not in _PARSERS:
        raise CannotCompile(compressing, f"its chain has the parser {type(parser).__name__}")
    return chain


class _Kept(Runnable[Mapping[str, Any], list[Document]]):
    """Keeps of the documents what the model has said about each one.

    The outputs are parsed by `parser`, if the server has not done that.
    """

    def __init__(self, compressor: Any, parser: BaseOutputParser[Any] | None = None) -> None:
        self.name = type(compressor).__name__
        self._parser = parser

    def invoke(
        self, input: Mapping[str, Any], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        outputs = input["outputs"]
        if self._parser is not None:
            outputs = [self._parser.invoke(output) for output in outputs]
        pairs = zip(input["documents"], outputs, strict=True)
        if self.name == "LLMChainFilter":
            return [document for document, output in pairs if output is True]
        return [Document(output, metadata=one.metadata) for one, output in pairs if len(output)]


class _First(Runnable[Sequence[Document], list[Document]]):
    """Takes the first documents of a ranking."""

    def __init__(self, compressor: Any) -> None:
        self.name = type(compressor).__name__
        self._compressor = compressor

    def invoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        return list(input[: self._compressor.top_n])


def _text_of(document: Any) -> Any:
    return UNKNOWN if document is UNKNOWN else document.page_content


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
