"""LangChain's classic chains over documents: the calls that they will make, for sending ahead.

LangChain still runs these chains itself, with its own results, callbacks and intermediate steps. A
call that was not sent ahead is an ordinary request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.prompt_templates import calls_user_code, render
from langchain_weftline.lower.symbols import UNKNOWN, AnswerMessage, CannotCompile, joined, settled
from langchain_weftline.model.call_sampling import call_options


@dataclass(frozen=True, slots=True)
class Page:
    """A document, whose text may be a variable of the server."""

    text: Any
    metadata: Mapping[str, Any]


class Classic:
    """Finds the calls that classic chains will make."""

    def __init__(self, lowering: Lowerer) -> None:
        self._lowering = lowering
        combining = {
            "stuff.StuffDocumentsChain": self._stuff,
            "reduce.ReduceDocumentsChain": self._reduce,
            "map_reduce.MapReduceDocumentsChain": self._map_reduce,
            "refine.RefineDocumentsChain": self._refine,
        }
        handlers: dict[str, Handler] = {"chains.llm.LLMChain": self._llm_chain}
        for name, combine in combining.items():
            handlers[f"chains.combine_documents.{name}"] = self._documents(combine)
        self._handlers: Mapping[str, Handler] = MappingProxyType(handlers)

    def handler(self, cls: type[Any]) -> Handler | None:
        """The handler of exactly this class, by name, so that langchain-classic is not imported."""
        package, _, name = f"{cls.__module__}.{cls.__qualname__}".partition(".")
        if package != "langchain_classic":
            return None
        return self._handlers.get(name)

    def _llm_chain(self, step: ChainStep, value: Any) -> Any:
        """LLMChain, on its own."""
        given = _inputs(step.runnable, value)
        return {**given, step.runnable.output_key: self._text(step, given)}

    def _text(self, step: ChainStep, given: Mapping[str, Any]) -> Any:
        """The text that the call of an LLMChain generates."""
        chain = step.runnable
        if type(chain.llm) is not ChatWeftline or type(chain.output_parser) is not StrOutputParser:
            raise CannotCompile(chain, "its model or its parser is of another class")
        stop = {"stop": given["stop"]} if "stop" in given else {}
        values = {name: given[name] for name in chain.prompt.input_variables if name in given}
        prompt = self._lowering.step(step.of(chain.prompt), values)
        options = {**chain.llm_kwargs, **stop}
        model = ChainStep(chain.llm, step.config, step.path, options)
        answer = self._lowering.step(model, prompt)
        return answer.text if isinstance(answer, AnswerMessage) else UNKNOWN

    def _documents(self, combine: Any) -> Handler:
        """The handler of a chain that combines documents."""

        def handle(step: ChainStep, value: Any) -> Any:
            given = dict(_inputs(step.runnable, value))
            documents = given.pop(step.runnable.input_key, None)
            if not isinstance(documents, list) or not documents:
                return UNKNOWN
            if not all(type(document) is Document for document in documents):
                return UNKNOWN
            pages = [Page(document.page_content, document.metadata) for document in documents]
            combine(step, pages, given)
            return UNKNOWN  # LangChain makes the outputs

        return handle

    def _stuff(self, step: ChainStep, pages: Sequence[Page], given: Mapping[str, Any]) -> Any:
        """One call on all documents."""
        chain = step.runnable
        shown = [_shown(page, chain) for page in pages]
        values = {
            **given,
            chain.document_variable_name: joined(chain.document_separator, shown, chain),
        }
        return self._text(step.of(chain.llm_chain), values)

    def _map_reduce(self, step: ChainStep, pages: Sequence[Page], given: Mapping[str, Any]) -> Any:
        """A call on each document, and the calls that combine their answers."""
        chain = step.runnable
        texts = [
            self._text(
                step.of(chain.llm_chain, f"map[{number}]"),
                {chain.document_variable_name: page.text, **given},
            )
            for number, page in enumerate(pages)
        ]
        answers = [Page(text, page.metadata) for text, page in zip(texts, pages, strict=True)]
        if any(answer.text is UNKNOWN for answer in answers):
            return UNKNOWN
        if not _fits(chain.reduce_documents_chain, chain.llm_chain.llm, len(pages)):
            return UNKNOWN  # whether they are collapsed first depends on their lengths
        reduce = step.of(chain.reduce_documents_chain, "reduce")
        return self._combined(reduce, answers, given)

    def _reduce(self, step: ChainStep, pages: Sequence[Page], given: Mapping[str, Any]) -> Any:
        """A reduction whose documents fit into one prompt."""
        chain = step.runnable
        combine = chain.combine_documents_chain
        is_stuff = type(combine).__name__ == "StuffDocumentsChain"
        if not is_stuff or _tokens(combine, pages) > chain.token_max:
            return UNKNOWN
        return self._combined(step, pages, given)

    def _combined(self, step: ChainStep, pages: Sequence[Page], given: Mapping[str, Any]) -> Any:
        combine = step.of(step.runnable.combine_documents_chain)
        if self.handler(type(combine.runnable)) is None:
            return UNKNOWN
        return self._stuff(combine, pages, given)

    def _refine(self, step: ChainStep, pages: Sequence[Page], given: Mapping[str, Any]) -> Any:
        """A call on the first document, and one on each further document and the last answer."""
        chain = step.runnable
        name = chain.document_variable_name
        first = {name: _shown(pages[0], chain), **given}
        answer = self._text(step.of(chain.initial_llm_chain, "first"), first)
        for number, page in enumerate(pages[1:], 1):
            if answer is UNKNOWN:
                return UNKNOWN
            values = {name: _shown(page, chain), chain.initial_response_name: answer, **given}
            refine = step.of(chain.refine_llm_chain, f"refine[{number}]")
            answer = self._text(refine, values)
        return answer


# The classic chains that retrieve documents, and the field with the chain that combines them.
_COMBINING = {
    "langchain_classic.chains.retrieval_qa.base.RetrievalQA": "combine_documents_chain",
    "langchain_classic.chains.conversational_retrieval.base.ConversationalRetrievalChain": (
        "combine_docs_chain"
    ),
}


def combining(chain: Any) -> Any:
    """The chain that combines the documents that `chain` retrieves; None for other chains."""
    field = _COMBINING.get(_name(chain))
    return None if field is None else getattr(chain, field)


COMPRESSING = "langchain_classic.retrievers.contextual_compression.ContextualCompressionRetriever"
# The compressors that ask a model about each document by itself.
_OF_EACH = frozenset(
    {
        "langchain_classic.retrievers.document_compressors.chain_extract.LLMChainExtractor",
        "langchain_classic.retrievers.document_compressors.chain_filter.LLMChainFilter",
    }
)


def question_of_each(retriever: Any) -> Any:
    """The chain that a compressing retriever runs on each document that it has found.

    The result is None for any other retriever, and if a function of the user makes the chain's
    input.
    """
    if _name(retriever) != COMPRESSING:
        return None
    compressor = retriever.base_compressor
    if _name(compressor) not in _OF_EACH:
        return None
    make = compressor.get_input
    is_usual = make.__module__ == type(compressor).__module__ and (
        make.__qualname__ == "default_get_input"
    )
    return compressor.llm_chain if is_usual else None


def asking(chain: Any) -> Any:
    """An LLMChain that only asks a question, as its prompt, its model and its parser.

    Raises CannotCompile for an LLMChain that does more.
    """
    if _name(chain) != "langchain_classic.chains.llm.LLMChain":
        raise CannotCompile(chain, "it is not among the chains that are known")
    does_more = chain.memory or chain.callbacks or chain.verbose or not chain.return_final_only
    if does_more or chain.output_key != "text" or chain.input_keys != ["question"]:
        raise CannotCompile(chain, "it does more than to ask the question")
    model = chain.llm.bind(**chain.llm_kwargs) if chain.llm_kwargs else chain.llm
    return chain.prompt | model | chain.output_parser


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _inputs(chain: Any, value: Any) -> Mapping[str, Any]:
    if chain.memory is not None:
        raise CannotCompile(chain, "it has a memory")
    if isinstance(value, dict):
        return value
    if len(chain.input_keys) != 1:
        raise CannotCompile(chain, "it does not get a dict")
    return {chain.input_keys[0]: value}


def _shown(page: Page, chain: Any) -> Any:
    """The page as the chain's document prompt shows it."""
    template = chain.document_prompt
    values = {"page_content": page.text, **page.metadata}
    if calls_user_code(template) or not set(template.input_variables) <= values.keys():
        raise CannotCompile(chain, "its document prompt is not a plain one")
    used = {name: values[name] for name in template.input_variables}
    return settled(_pieces(render(template, used).turns))


def _pieces(turns: Any) -> Iterator[Any]:
    for turn in turns:
        yield from turn.pieces()


def _fits(reduce: Any, model: Any, count: int) -> bool:
    """Whether `count` answers of `model` fit into one prompt of `reduce`, whatever their length."""
    combine = getattr(reduce, "combine_documents_chain", None)
    if type(combine).__name__ != "StuffDocumentsChain" or type(model) is not ChatWeftline:
        return False
    longest = call_options(model, {}).sampling.max_tokens
    if longest is None:
        return False
    empty = _tokens(combine, [Page("", {})] * count)
    return bool(empty + count * longest <= reduce.token_max)


def _tokens(combine: Any, pages: Sequence[Page]) -> int:
    """The length of the combining prompt, as the chain itself measures it."""
    if combine.llm_chain.llm.custom_get_token_ids is not None:
        raise CannotCompile(combine, "its model has a tokenizer of its own")
    documents = [Document(page_content=page.text, metadata=dict(page.metadata)) for page in pages]
    blanks = dict.fromkeys(combine.llm_chain.prompt.input_variables, "")
    return int(combine.prompt_length(documents, **blanks) or 0)
