"""The provenance that LangGraph programs and LangChain's classic chains send."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough

from langchain_weftline import ChatWeftline
from tests.integrations.provenance import CHAT, Watched, result_of

JOKE, BETTER = "A kangaroo walks into a bar.", "A kangaroo hops into a bar, twice."
RULES = [
    ("funnier", BETTER),
    ("joke about", JOKE),
    ("Distill", "All of it, distilled."),
    ("refine", "A finer summary of it all."),
    ("", "A summary of one document."),
]
ONE, OTHER = "The first document is about weaving.", "The second document is about dyeing."
SUMMARY = RULES[-1][1]


class Shelf(BaseRetriever):
    """A retriever that always finds both documents."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(ONE), Document(OTHER)]


class Jokes(TypedDict, total=False):
    topic: str
    joke: str
    better: str


def joke_graph(llm: ChatWeftline) -> Any:
    """Two nodes in a row that build their prompts as f-strings."""
    graph = pytest.importorskip("langgraph.graph")

    def joke(state: Jokes) -> Jokes:
        return {"joke": str(llm.invoke(f"Write a joke about {state['topic']}").content)}

    def better(state: Jokes) -> Jokes:
        return {"better": str(llm.invoke(f"Make this funnier: {state['joke']}").content)}

    made = graph.StateGraph(Jokes)
    made.add_node("tell", joke)
    made.add_node("improve", better)
    made.add_edge(graph.START, "tell")
    made.add_edge("tell", "improve")
    return made.compile()


JOKES = [
    "[tell] | user: Write a joke about {topic=kangaroos}",
    f"[improve] | user: Make this funnier: {{joke<={JOKE}}}",
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["invoke", "ainvoke"])
def test_langgraph_nodes(asynchronous: bool, watched: Watched, plain_llm: ChatWeftline) -> None:
    """An f-string in a node shows the state's values and the edge between the nodes."""

    def program(llm: ChatWeftline) -> Any:
        graph = joke_graph(llm)
        return (graph.ainvoke if asynchronous else graph.invoke)({"topic": "kangaroos"})

    result, sent = watched.run(program)
    assert sent == JOKES
    assert result == result_of(program, plain_llm)


class Pile(TypedDict, total=False):
    contents: list[str]
    content: str
    summaries: Annotated[list[str], operator.add]
    final: str


def test_langgraph_send(watched: Watched, plain_llm: ChatWeftline) -> None:
    """A fan-out by Send is joined: each summary in the last prompt comes from its own call."""
    graph = pytest.importorskip("langgraph.graph")
    types = pytest.importorskip("langgraph.types")
    summarise = ChatPromptTemplate.from_template("Summarise:\n{context}")
    distill = ChatPromptTemplate.from_template("Distill: {docs}")

    def program(llm: ChatWeftline) -> Any:
        def one(state: Pile) -> Pile:
            return {"summaries": [(summarise | llm | StrOutputParser()).invoke(state["content"])]}

        def all_of_them(state: Pile) -> Pile:
            docs = "; ".join(state["summaries"])
            return {"final": (distill | llm | StrOutputParser()).invoke({"docs": docs})}

        made = graph.StateGraph(Pile)
        made.add_node("one", one)
        made.add_node("all", all_of_them)
        made.add_conditional_edges(
            graph.START,
            lambda state: [types.Send("one", {"content": c}) for c in state["contents"]],
            ["one"],
        )
        made.add_edge("one", "all")
        return made.compile().invoke({"contents": [ONE, OTHER]})

    result, sent = watched.run(program)
    assert sorted(sent) == [
        f"[all] | user: Distill: {{docs<={SUMMARY}}}; {{docs<={SUMMARY}}}",
        f"[one] | user: Summarise:\n{{context={ONE}}}",
        f"[one] | user: Summarise:\n{{context={OTHER}}}",
    ]
    assert result == result_of(program, plain_llm)
    bodies = watched.recording.bodies(CHAT)[-6:]
    last = next(body["weftline"] for body in bodies if "Distill" in str(body))
    read = [piece["from_var"] for piece in last["messages"][0] if "from_var" in piece]
    assert len(set(read)) == 2  # Their texts are equal, but each comes from its own call.


def test_rag_in_lcel(watched: Watched, plain_llm: ChatWeftline) -> None:
    """Retrieved text is a value of the template, like the question."""
    asked = ChatPromptTemplate.from_template("Context: {context}\nQ: {question}")

    def program(llm: ChatWeftline) -> Any:
        context = Shelf() | (lambda docs: "\n".join(doc.page_content for doc in docs))
        chain = {"context": context, "question": RunnablePassthrough()} | asked | llm
        return chain.invoke("Which crafts?")

    result, sent = watched.run(program)
    assert sent == [f"user: Context: {{context={ONE}\n{OTHER}}}\nQ: {{question=Which crafts?}}"]
    assert result == result_of(program, plain_llm)


def classic(name: str, llm: ChatWeftline) -> Any:
    """Run a classic chain. These render their prompts without any callback."""
    chains = pytest.importorskip("langchain_classic.chains")
    documents = [Document(ONE), Document(OTHER)]
    if name == "LLMChain":
        prompt = PromptTemplate.from_template("Write a joke about {topic} now")
        return chains.LLMChain(llm=llm, prompt=prompt).invoke({"topic": "kangaroos"})
    if name == "RetrievalQA":
        return chains.RetrievalQA.from_chain_type(llm, retriever=Shelf()).invoke("Which crafts?")
    load = pytest.importorskip("langchain_classic.chains.summarize").load_summarize_chain
    return load(llm, chain_type=name).invoke({"input_documents": documents})


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainDeprecationWarning")
@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("LLMChain", [["topic=kangaroos"]]),
        ("stuff", [[f"text={ONE}\n\n{OTHER}"]]),
        ("map_reduce", [[f"={ONE}"], [f"={OTHER}"], [f"<={SUMMARY}", f"<={SUMMARY}"]]),
        ("refine", [[f"={ONE}"], [f"existing_answer<={SUMMARY}", f"text={OTHER}"]]),
        ("RetrievalQA", [[f"context={ONE}\n\n{OTHER}", "question=Which crafts?"]]),
    ],
)
def test_classic_chains(
    name: str, calls: list[list[str]], watched: Watched, plain_llm: ChatWeftline
) -> None:
    """Their values are found in the rendered text, and their edges by the answers' text."""
    result, sent = watched.run(lambda llm: classic(name, llm))
    assert len(sent) == len(calls)
    for line, values in zip(sent, calls, strict=True):
        for value in values:
            assert value + "}" in line
            line = line.replace(value + "}", "", 1)
    assert result == result_of(lambda llm: classic(name, llm), plain_llm)
