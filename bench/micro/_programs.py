"""Ten typical LangChain programs, as functions of a model, for `weftline bench langchain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_classic.chains.summarize import load_summarize_chain
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough

Chain = Runnable[Any, Any]


@dataclass(frozen=True)
class Program:
    """A program, its input, and how many of its calls follow one another."""

    name: str
    make: Callable[[Any], Chain]
    given: Any
    calls: int
    in_a_row: int


class Shelf(BaseRetriever):
    """A retriever in this process."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document("Rome lies on the Tiber."), Document("The weft crosses the warp.")]


def ask(llm: Any, template: str) -> Chain:
    return ChatPromptTemplate.from_template(template) | llm | StrOutputParser()


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def tidy(text: str) -> str:
    """A function that the server cannot read."""
    return " ".join(word for word in text.split() if word.isalnum())


def critique(llm: Any) -> Chain:
    return {"joke": ask(llm, "A joke on {x}.")} | ask(llm, "Rate this joke: {joke}")


def improve(llm: Any) -> Chain:
    draft = RunnablePassthrough.assign(draft=ask(llm, "Write on {x}."))
    review = draft.assign(flaw=ask(llm, "Find a flaw in {draft}"))
    return review | ask(llm, "Improve {draft} of {flaw}")


def six(llm: Any) -> Chain:
    chain = ask(llm, "Tell of {x}")
    for _ in range(5):
        chain = {"x": chain} | ask(llm, "Go on: {x}")
    return chain


def weigh(llm: Any) -> Chain:
    both = RunnableParallel(pro=ask(llm, "For {x}"), con=ask(llm, "Against {x}"))
    return both | ask(llm, "Weigh {pro} and {con}")


def merged(llm: Any) -> Chain:
    summaries = ({"x": RunnablePassthrough()} | ask(llm, "Sum up {x}")).map()
    return summaries | (lambda parts: {"all": "\n".join(parts)}) | ask(llm, "Merge {all}")


def function_between(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}") | tidy | ask(llm, "Again: {y}")


def rewritten(llm: Any) -> Chain:
    question = {"q": RunnablePassthrough()} | ask(llm, "Rewrite {q}")
    found = {"context": question | Shelf() | format_docs, "question": RunnablePassthrough()}
    return found | ask(llm, "{context}\n\n{question}")


def rag(llm: Any) -> Chain:
    found = {"context": Shelf() | format_docs, "question": RunnablePassthrough()}
    return found | ask(llm, "{context}\n\n{question}")


def refined(llm: Any) -> Chain:
    return load_summarize_chain(llm, chain_type="refine")


DOCUMENTS = {"input_documents": [Document(f"Chapter {n} of the book.") for n in range(4)]}
X = {"x": "soup"}
PROGRAMS = (
    Program("one call", lambda llm: ask(llm, "Tell of {x}."), X, 1, 1),
    Program("joke and critique", critique, X, 2, 2),
    Program("draft, review, improve", improve, X, 3, 3),
    Program("six in a row", six, X, 6, 6),
    Program("pro and con", weigh, X, 3, 2),
    Program("map and reduce over 6", merged, [f"part {n}" for n in range(6)], 7, 2),
    Program("a function between two calls", function_between, X, 2, 2),
    Program("RAG", rag, "What crosses?", 1, 1),
    Program("RAG with a rewritten question", rewritten, "What crosses?", 2, 2),
    Program("classic refine over 4", refined, DOCUMENTS, 4, 4),
)
