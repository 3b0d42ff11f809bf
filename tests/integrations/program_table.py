"""Typical programs of LangChain's users, as functions of a model, with the requests they make.

Each answer of the model is the echo of its prompt. So equal results mean that all prompts were
equal. `plain` has the requests of the plain program, and how many of them follow one another.
`ours` has the requests of the compiled one, and how many of them are submits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from langchain_classic.chains import ConversationalRetrievalChain, LLMChain, RetrievalQA
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.history_aware_retriever import create_history_aware_retriever
from langchain_classic.chains.retrieval import create_retrieval_chain
from langchain_classic.chains.summarize import load_summarize_chain
from langchain_classic.output_parsers import BooleanOutputParser
from langchain_classic.retrievers import ContextualCompressionRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor, LLMChainFilter
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    NumberedListOutputParser,
    PydanticOutputParser,
    StrOutputParser,
)
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel

Chain = Runnable[Any, Any]
TEXT = StrOutputParser()


@dataclass(frozen=True)
class Program:
    """A program, an input, and its requests: (all, in a row) plain, and (all, submits) ours."""

    make: Callable[[Any], Chain]
    given: Any
    plain: tuple[int, int]
    ours: tuple[int, int]
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.make.__name__


PROGRAMS: list[Program] = []
Make = Callable[[Any], Chain]


def program(
    given: Any, plain: tuple[int, int], ours: tuple[int, int], **config: Any
) -> Callable[[Make], Make]:
    """Put a program into the table."""

    def add(make: Make) -> Make:
        PROGRAMS.append(Program(make, given, plain, ours, config))
        return make

    return add


def ask(llm: Any, template: str) -> Chain:
    return ChatPromptTemplate.from_template(template) | llm | TEXT


def fenced(llm: Any, content: str) -> Chain:
    """A prompt whose echo holds JSON."""
    return ChatPromptTemplate.from_template(f"```json\n{content}\n```") | llm


class City(BaseModel):
    name: str
    people: int


class Shelf(BaseRetriever):
    """A retriever that finds what it is asked for."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(f"About {query[:40]}.", metadata={"n": 1}), Document(query[:40][::-1])]


def shelf() -> Chain:
    """A vector store in this process, with three documents."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    store.add_texts(["Rome lies on the Tiber.", "The weft crosses the warp.", "Soup is hot."])
    return store.as_retriever(search_kwargs={"k": 2})


def format_docs(docs: list[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def tidy(text: str) -> str:
    """A function that the server cannot read."""
    return " ".join(word for word in text.split() if word.isalnum())


def to_query(text: str) -> dict[str, str]:
    return {"query": tidy(text), "tone": "calm"}


@tool
def count_words(text: str) -> int:
    """Count the words."""
    return len(text.split())


# --- one call, and chains of calls


@program({"x": "soup"}, (1, 1), (1, 0))
def one_call(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}.")


@program({"x": "soup"}, (1, 1), (1, 0))
def one_message(llm: Any) -> Chain:
    return ChatPromptTemplate([("system", "Be brief."), ("human", "{x}")]) | llm


@program({"x": "soup"}, (2, 2), (1, 1))
def joke_and_critique(llm: Any) -> Chain:
    return ask(llm, "A joke on {x}.") | {"joke": RunnablePassthrough()} | ask(llm, "Rate {joke}")


@program({"x": "soup"}, (3, 3), (1, 1))
def draft_review_improve(llm: Any) -> Chain:
    draft = RunnablePassthrough.assign(draft=ask(llm, "Write on {x}."))
    review = draft.assign(flaw=ask(llm, "Find a flaw in {draft}"))
    return review | ask(llm, "Improve {draft} of {flaw}")


@program("soup", (4, 4), (1, 1))
def four_in_a_row(llm: Any) -> Chain:
    step = ask(llm, "Again: {x}")
    return ask(llm, "Tell of {x}") | step | step | step


@program({"x": "soup"}, (3, 2), (1, 1))
def pros_and_cons(llm: Any) -> Chain:
    both = RunnableParallel(pro=ask(llm, "For {x}"), con=ask(llm, "Against {x}"))
    return both | ask(llm, "Weigh {pro} and {con}")


@program({"x": "soup"}, (2, 1), (1, 1))
def joke_and_poem(llm: Any) -> Chain:
    return RunnableParallel(joke=ask(llm, "A joke on {x}"), poem=ask(llm, "A poem on {x}"))


@program(["one", "two", "three"], (4, 2), (1, 1))
def map_and_reduce(llm: Any) -> Chain:
    summaries = ({"x": RunnablePassthrough()} | ask(llm, "Sum up {x}")).map()
    return summaries | (lambda parts: {"all": "\n".join(parts)}) | ask(llm, "Merge {all}")


@program([{"x": "a"}, {"x": "b"}], (2, 1), (1, 1))
def map_alone(llm: Any) -> Chain:
    return ask(llm, "Sum up {x}").map()


@program({"x": "soup"}, (2, 2), (1, 1))
def translate_twice(llm: Any) -> Chain:
    german = ask(llm, "To German: {x}")
    return {"de": german, "x": itemgetter("x")} | ask(llm, "Compare {x} with {de}")


@program("soup", (1, 1), (1, 0))
def a_text_as_prompt(llm: Any) -> Chain:
    return llm | TEXT


@program({"x": "soup"}, (2, 2), (1, 1))
def bound_options(llm: Any) -> Chain:
    short = ChatPromptTemplate.from_template("Tell of {x}.") | llm.bind(stop=["assistant"]) | TEXT
    return short | ask(llm, "Again: {y}")


# --- functions that are data


@program({"x": "soup"}, (2, 2), (1, 1))
def stripped(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}") | (lambda text: text.strip().lower()) | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def first_line(llm: Any) -> Chain:
    return ask(llm, "{x}\nmore") | (lambda t: t.split("\n")[0]) | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def formatted(llm: Any) -> Chain:
    shown = RunnableLambda(lambda text: "Q: {} ({})".format(text, "short"))
    return ask(llm, "Tell of {x}") | shown | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def with_percent(llm: Any) -> Chain:
    shown = RunnableLambda(lambda text: "Q: %s" % text)  # noqa: UP031
    return ask(llm, "Tell of {x}") | shown | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def an_item_of_json(llm: Any) -> Chain:
    read = fenced(llm, '{{"city": "{x}", "n": 1}}') | JsonOutputParser()
    return read | (lambda made: {"city": made["city"]}) | ask(llm, "Tell of {city}")


@program({"x": "soup"}, (2, 2), (1, 1))
def get_with_a_default(llm: Any) -> Chain:
    read = fenced(llm, '{{"city": "{x}"}}') | JsonOutputParser()
    return read | (lambda made: made.get("land", "no land")) | ask(llm, "Tell of {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def messages_by_hand(llm: Any) -> Chain:
    made = RunnableLambda(lambda text: [SystemMessage("Be brief."), HumanMessage(text)])
    return ask(llm, "Tell of {x}") | made | llm | TEXT


@program({"x": "soup", "tone": "calm"}, (2, 2), (1, 1))
def a_condition_of_the_client(llm: Any) -> Chain:
    step = RunnablePassthrough.assign(draft=ask(llm, "Tell of {x}"))
    chosen = RunnableLambda(lambda v: v["draft"] if v["tone"] == "calm" else "nothing")
    return step | chosen | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def joined_list(llm: Any) -> Chain:
    read = ask(llm, "{x}, salt, water") | CommaSeparatedListOutputParser()
    return read | (lambda items: " / ".join(items)) | ask(llm, "Cook {items}")


# --- prompts


@program({"past": [HumanMessage("Hi"), AIMessage("Hello")], "x": "And?"}, (1, 1), (1, 0))
def chat_history(llm: Any) -> Chain:
    prompt = ChatPromptTemplate([MessagesPlaceholder("past"), ("human", "{x}")])
    return prompt | llm | TEXT


@program({"x": "soup"}, (2, 2), (1, 1))
def few_shots(llm: Any) -> Chain:
    examples = [{"q": "salt", "a": "salty"}, {"q": "lemon", "a": "sour"}]
    shot = ChatPromptTemplate([("human", "{q}"), ("ai", "{a}")])
    shots = FewShotChatMessagePromptTemplate(examples=examples, example_prompt=shot)
    return ChatPromptTemplate([shots, ("human", "{x}")]) | llm | TEXT | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def few_shots_of_text(llm: Any) -> Chain:
    shot = PromptTemplate.from_template("{q}: {a}")
    shots = FewShotPromptTemplate(
        examples=[{"q": "salt", "a": "salty"}],
        example_prompt=shot,
        suffix="{x}: ",
        input_variables=["x"],
    )
    return shots | llm | TEXT | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def partial_prompt(llm: Any) -> Chain:
    prompt = ChatPromptTemplate.from_template("{tone}: {x}").partial(tone="calm")
    return prompt | llm | TEXT | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (2, 1))
def mustache_prompt(llm: Any) -> Chain:
    again = PromptTemplate.from_template("Again: {{{y}}}", template_format="mustache")
    return ask(llm, "Tell of {x}") | (lambda text: {"y": text}) | again | TEXT_OF | ask(llm, "{z}")


TEXT_OF: Chain = RunnableLambda(lambda prompt: prompt.to_string())


# --- parsers


@program({"x": "soup"}, (4, 2), (1, 1))
def a_call_for_each_item(llm: Any) -> Chain:
    read = ask(llm, "{x}, salt") | CommaSeparatedListOutputParser()
    return read | ({"item": RunnablePassthrough()} | ask(llm, "Cook {item}")).map()


@program({"x": "soup"}, (1, 1), (1, 0))
def numbered_list(llm: Any) -> Chain:
    prompt = ChatPromptTemplate.from_template("1. {x}\n\n2. salt\n\n")
    return prompt | llm | NumberedListOutputParser()


@program({"x": "soup"}, (1, 1), (1, 0))
def a_parsed_object(llm: Any) -> Chain:
    return fenced(llm, '{{"name": "{x}", "people": 3}}') | PydanticOutputParser(
        pydantic_object=City
    )


@program({"x": "soup"}, (2, 2), (1, 1))
def an_attribute_of_an_object(llm: Any) -> Chain:
    read = fenced(llm, '{{"name": "{x}", "people": 3}}')
    made = read | PydanticOutputParser(pydantic_object=City)
    return made | (lambda city: city.name) | ask(llm, "Tell of {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def a_number_of_an_object(llm: Any) -> Chain:
    """Pydantic makes a number of the text "3", too."""
    read = fenced(llm, '{{"name": "{x}", "people": "3"}}')
    made = read | PydanticOutputParser(pydantic_object=City)
    return made | (lambda city: f"{city.people}") | ask(llm, "Tell of {y}")


@program({"x": "soup"}, (3, 3), (1, 1))
def routed_by_an_attribute(llm: Any) -> Chain:
    read = fenced(llm, '{{"name": "{x}", "people": 3}}')
    made = read | PydanticOutputParser(pydantic_object=City)
    name = RunnableLambda(lambda city: city.name)
    town, other = name | ask(llm, "Tell of {x}"), name | ask(llm, "Where is {x}?")
    return made | RunnableBranch((lambda city: city.name == "soup", town), other) | ask(llm, "{y}!")


@program({"x": "soup"}, (1, 1), (1, 0))
def json_that_is_none(llm: Any) -> Chain:
    return ask(llm, "{x} is no JSON") | JsonOutputParser()


@program({"x": "NaN"}, (1, 1), (1, 0))
def json_with_nan(llm: Any) -> Chain:
    return fenced(llm, '{{"share": {x}, "half": "\\ud83d"}}') | JsonOutputParser()


@program({"x": "NaN"}, (2, 2), (2, 1))
def nan_for_each(llm: Any) -> Chain:
    read = fenced(llm, "[{x}, 1.0]") | JsonOutputParser()
    return read | RunnableLambda(str).map() | (lambda made: ", ".join(made)) | ask(llm, "{y}")


# --- steps of the client


@program({"x": "soup"}, (2, 2), (2, 1))
def a_function_between(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}") | tidy | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (2, 1))
def a_function_that_makes_the_input(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}") | to_query | ask(llm, "{tone}: {query}")


@program({"x": "soup"}, (3, 2), (2, 1))
def a_function_beside_a_call(llm: Any) -> Chain:
    both = RunnableParallel(a=ask(llm, "Tell of {x}") | tidy, b=ask(llm, "Sing of {x}"))
    return both | ask(llm, "{a} {b}")


@program({"x": "soup"}, (2, 2), (2, 1))
def a_decorated_chain(llm: Any) -> Chain:
    @chain
    def shorten(text: str) -> str:
        return text[: len(text) // 2]

    return ask(llm, "Tell of {x}") | shorten | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (2, 1))
def a_tool_between(llm: Any) -> Chain:
    counted = (lambda text: {"text": text}) | count_words
    return ask(llm, "Tell of {x}") | counted | ask(llm, "There are {n} words.")


@program({"x": "soup"}, (1, 1), (1, 1))
def a_function_at_the_end(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}") | tidy


@program({"x": "soup"}, (1, 1), (1, 1))
def a_function_that_fails(llm: Any) -> Chain:
    def refuse(text: str) -> str:
        raise LookupError("nothing there")

    return ask(llm, "Tell of {x}") | refuse


@program({"x": "soup"}, (2, 2), (1, 1))
def a_guard(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}") | RunnablePassthrough(len) | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (1, 1))
def a_branch_on_an_answer(llm: Any) -> Chain:
    ways = RunnableBranch(
        (lambda v: "number" in v["kind"], ask(llm, "Count {x}")), ask(llm, "Tell of {x}")
    )
    return RunnablePassthrough.assign(kind=ask(llm, "Which kind is {x}?")) | ways


@program({"x": "soup"}, (2, 2), (2, 1))
def routed_by_a_function(llm: Any) -> Chain:
    def choose(v: dict[str, str]) -> Chain:
        return ask(llm, "Count {x}") if "number" in v["kind"] else ask(llm, "Tell of {x}")

    return RunnablePassthrough.assign(kind=ask(llm, "Which kind is {x}?")) | RunnableLambda(choose)


@program({"x": "soup"}, (2, 2), (1, 1))
def with_retries(llm: Any) -> Chain:
    return ask(llm, "Tell of {x}").with_retry(stop_after_attempt=2) | ask(llm, "Again: {y}")


@program({"x": "soup"}, (2, 2), (2, 0))
def with_a_fallback(llm: Any) -> Chain:
    strict = fenced(llm, "{x}") | JsonOutputParser()
    return strict.with_fallbacks([ask(llm, "Tell of {x}")])


# --- retrieval


@program("What crosses?", (1, 1), (1, 0))
def rag(llm: Any) -> Chain:
    found = {"context": shelf() | format_docs, "question": RunnablePassthrough()}
    return found | ask(llm, "{context}\n\n{question}")


@program("What crosses?", (2, 2), (2, 1))
def rag_with_a_rewritten_question(llm: Any) -> Chain:
    rewritten = {"q": RunnablePassthrough()} | ask(llm, "Rewrite {q}")
    found = {"context": rewritten | Shelf() | format_docs, "question": RunnablePassthrough()}
    return found | ask(llm, "{context}\n\n{question}")


@program("What crosses?", (1, 1), (1, 0))
def rag_with_sources(llm: Any) -> Chain:
    answer = RunnablePassthrough.assign(context=lambda v: format_docs(v["docs"]))
    found = RunnableParallel(docs=Shelf(), question=RunnablePassthrough())
    return found.assign(answer=answer | ask(llm, "{context}\n\n{question}"))


@program("What crosses?", (3, 2), (2, 1))
def hyde_and_question(llm: Any) -> Chain:
    made = {"q": RunnablePassthrough()} | ask(llm, "Write a passage on {q}") | Shelf() | format_docs
    again = {"q": RunnablePassthrough()} | ask(llm, "Simpler: {q}") | Shelf() | format_docs
    both = RunnableParallel(a=made, b=again, q=RunnablePassthrough())
    return both | ask(llm, "{a} {b} {q}")


@program({"input": "What crosses?"}, (1, 1), (1, 0))
def retrieval_chain(llm: Any) -> Chain:
    prompt = ChatPromptTemplate.from_template("{context}\n\n{input}")
    return create_retrieval_chain(Shelf(), create_stuff_documents_chain(llm, prompt))


PAST: list[BaseMessage] = [HumanMessage("Hi"), AIMessage("Hello")]


@program({"input": "And the warp?", "chat_history": PAST}, (2, 2), (2, 0))
def conversation_with_retrieval(llm: Any) -> Chain:
    history = MessagesPlaceholder("chat_history")
    rephrase = ChatPromptTemplate([history, ("human", "{input}"), ("human", "Make it alone.")])
    answer = ChatPromptTemplate([("system", "{context}"), history, ("human", "{input}")])
    found = create_history_aware_retriever(llm, Shelf(), rephrase)
    return create_retrieval_chain(found, create_stuff_documents_chain(llm, answer))


@program({"context": [Document("a"), Document("b")], "x": "soup"}, (1, 1), (1, 0))
def stuffed_documents(llm: Any) -> Chain:
    prompt = ChatPromptTemplate.from_template("{context}\n\n{x}")
    return create_stuff_documents_chain(llm, prompt)


# --- classic chains


def documents(*texts: str) -> dict[str, Any]:
    return {"input_documents": [Document(text, metadata={"n": 1}) for text in texts]}


@program({"x": "soup"}, (1, 1), (1, 0))
def llm_chain(llm: Any) -> Chain:
    with warnings.catch_warnings():  # people still write it
        warnings.simplefilter("ignore")
        return LLMChain(llm=llm, prompt=PromptTemplate.from_template("Tell of {x}"))


@program(documents("one", "two"), (1, 1), (1, 1))
def summary_of_all(llm: Any) -> Chain:
    return load_summarize_chain(llm, chain_type="stuff")


@program(documents("one", "two", "three", "four"), (5, 2), (1, 1))
def summary_by_map_and_reduce(llm: Any) -> Chain:
    short = llm.model_copy(update={"max_tokens": 256})
    return load_summarize_chain(short, chain_type="map_reduce", return_intermediate_steps=True)


@program(documents("one", "two", "three", "four"), (5, 2), (2, 1))
def summary_of_any_length(llm: Any) -> Chain:
    return load_summarize_chain(llm, chain_type="map_reduce")


@program(documents("one " * 60, "two " * 60, "three", "four"), (10, 3), (7, 1))
def summary_that_collapses(llm: Any) -> Chain:
    return load_summarize_chain(llm, chain_type="map_reduce", token_max=150)


@program(documents("one", "two", "three"), (3, 3), (1, 1))
def refined_summary(llm: Any) -> Chain:
    return load_summarize_chain(llm, chain_type="refine", return_intermediate_steps=True)


@program({"query": "What crosses?"}, (1, 1), (1, 0))
def retrieval_qa(llm: Any) -> Chain:
    return RetrievalQA.from_chain_type(llm, retriever=Shelf(), return_source_documents=True)


@program({"question": "And the warp?", "chat_history": [("Hi", "Hello")]}, (2, 2), (2, 0))
def conversational_retrieval(llm: Any) -> Chain:
    return ConversationalRetrievalChain.from_llm(llm, retriever=Shelf())


@program({"query": "What crosses?"}, (3, 2), (1, 1))
def retrieval_qa_by_map_and_reduce(llm: Any) -> Chain:
    short = llm.model_copy(update={"max_tokens": 256})
    return RetrievalQA.from_chain_type(short, chain_type="map_reduce", retriever=Shelf())


@program({"query": "What crosses?"}, (2, 2), (1, 1))
def retrieval_qa_by_refine(llm: Any) -> Chain:
    return RetrievalQA.from_chain_type(llm, chain_type="refine", retriever=Shelf())


@program({"question": "And the warp?", "chat_history": [("Hi", "Hello")]}, (4, 3), (2, 1))
def conversational_retrieval_by_map_and_reduce(llm: Any) -> Chain:
    short = llm.model_copy(update={"max_tokens": 256})
    return ConversationalRetrievalChain.from_llm(short, retriever=Shelf(), chain_type="map_reduce")


@program("What crosses?", (3, 3), (2, 1))
def extracts_of_each_document(llm: Any) -> Chain:
    extract = LLMChainExtractor.from_llm(llm)
    short = ContextualCompressionRetriever(base_compressor=extract, base_retriever=Shelf())
    found = short | format_docs
    return {"context": found, "q": RunnablePassthrough()} | ask(llm, "{context} {q}")


@program("What crosses?", (3, 2), (2, 1))
def relevant_documents(llm: Any) -> Chain:
    relevant = PromptTemplate.from_template(
        "Say YES. {question} {context}", output_parser=BooleanOutputParser()
    )
    keep = LLMChainFilter.from_llm(llm, relevant)
    kept = ContextualCompressionRetriever(base_compressor=keep, base_retriever=Shelf())
    return {"context": kept | format_docs, "q": RunnablePassthrough()} | ask(llm, "{context} {q}")


@program("What crosses?", (2, 2), (2, 1))
def several_queries(llm: Any) -> Chain:
    found = MultiQueryRetriever.from_llm(Shelf(), llm) | format_docs
    return {"context": found, "q": RunnablePassthrough()} | ask(llm, "{context} {q}")
