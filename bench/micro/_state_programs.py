"""Ten programs whose prompts have beginnings in common, for `weftline bench states`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableParallel

Program = Callable[[Any, Callable[[Any], Any]], None]
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
CHATS, TURNS = 6, 3
AGENT_TURNS, PAUSE = 30, 6
TOOLS = 6


def words(seed: object, tokens: int) -> str:
    """A text of so many tokens of SmolLM2: after a space, each letter is one."""
    return " ".join(random.Random(str(seed)).choices(LETTERS, k=tokens))


def turn(system: str, *texts: str) -> list[BaseMessage]:
    """A conversation: texts of the user, and between them those of the assistant."""
    kinds = (HumanMessage, AIMessage)
    return [SystemMessage(system), *(kinds[at % 2](text) for at, text in enumerate(texts))]


def shared_system(llm: Any, change: Callable[[Any], Any]) -> None:
    """Twice four calls at once, 2,000 tokens in common and 700 of their own."""
    for group in range(2):
        llm.batch([turn(words("system", 2000), words((group, at), 700)) for at in range(4)])


def map_reduce(llm: Any, change: Callable[[Any], Any]) -> None:
    """Eight parts of 700 tokens with 1,000 in common are summed up at once, then merged."""
    each = [turn(words("sum up", 1000), words(("part", at), 700)) for at in range(8)]
    answers = llm.batch(each)
    llm.invoke(turn(words("merge", 200), " ".join(one.text for one in answers)))


def siblings(llm: Any, change: Callable[[Any], Any]) -> None:
    """Eight calls on a text of 2,000 tokens, each with 700 of its own, and one on their answers: a
    graph, which is run twice with texts of their own."""
    chain = siblings_and_join(llm)
    for run in range(2):
        change(chain).invoke({"text": words("text", 2000), "own": words(("own", run), 700)})


def siblings_and_join(llm: Any) -> Runnable[Any, Any]:
    """The graph."""
    each = {}
    for at in range(8):
        asked = [("system", "{text}"), ("human", f"{words(('aspect', at), 20)} {{own}}")]
        each[f"s{at}"] = ChatPromptTemplate.from_messages(asked) | llm | StrOutputParser()
    answers = " ".join(f"{{{name}}}" for name in each)
    join = [("system", "Join the answers."), ("human", answers)]
    return RunnableParallel(each) | ChatPromptTemplate.from_messages(join) | llm | StrOutputParser()


def chats(llm: Any, change: Callable[[Any], Any]) -> None:
    """Six conversations of three turns, one after another, on four slots."""
    said: dict[int, list[str]] = {chat: [] for chat in range(CHATS)}
    for at in range(TURNS):
        for chat, texts in said.items():
            texts.append(words(("turn", chat, at), 200))
            texts.append(llm.invoke(turn(words(("chat", chat), 700), *texts)).text)


def two_borders(llm: Any, change: Callable[[Any], Any]) -> None:
    """Six calls with 1,500 tokens in common, three by three with 1,500 more, in turns."""
    for at in range(6):
        middle = words(("middle", at % 2), 1500)
        llm.invoke(turn(words("begin", 1500), f"{middle} {words(('end', at), 200)}"))


def tools() -> list[dict[str, Any]]:
    """Six tools, whose descriptions have 100 tokens each."""
    made = []
    for at in range(TOOLS):
        place = {"type": "string", "description": words(("place", at), 20)}
        schema = {"type": "object", "properties": {"place": place}, "required": ["place"]}
        about = {"name": f"tool_{at}", "description": words(("tool", at), 80)}
        made.append({"type": "function", "function": {**about, "parameters": schema}})
    return made


def step(at: object, number: int) -> list[BaseMessage]:
    """A call of a tool, and its result."""
    id, place = "abcdefghi", {"place": words(at, 8)}
    call = {"name": f"tool_{number % TOOLS}", "args": place, "id": id}
    return [
        AIMessage("", tool_calls=[call]),
        ToolMessage(words((at, "found"), 40), tool_call_id=id),
    ]


def agent(llm: Any, change: Callable[[Any], Any]) -> None:
    """An agent with tools takes 30 turns. In four pauses, four other calls take all slots."""
    bound = llm.bind_tools(tools())
    said = turn(words("agent", 1000), words("task", 100))
    for at in range(AGENT_TURNS):
        bound.invoke(said)
        said += step(at, at)
        if at % PAUSE == PAUSE - 1 and at + 1 < AGENT_TURNS:
            llm.batch([turn(words("other", 20), words((at, one), 600)) for one in range(4)])


def documents(llm: Any, change: Callable[[Any], Any]) -> None:
    """Five questions on four documents of 400 tokens, which come in three orders."""
    for at, order in enumerate(("0123", "0132", "2013", "0123", "0132")):
        found = "\n\n".join(words(("document", name), 400) for name in order)
        llm.invoke(turn(words("answer", 300), f"{found}\n\n{words(('question', at), 40)}"))


def refine(llm: Any, change: Callable[[Any], Any]) -> None:
    """An answer is refined with six documents of 500 tokens, one after another."""
    answer = ""
    for at in range(6):
        text = f"{answer}\n\n{words(('chapter', at), 500)}"
        answer = llm.invoke(turn(words("refine", 600), text)).text


def samples(llm: Any, change: Callable[[Any], Any]) -> None:
    """Six answers to one prompt of 1,500 tokens, at once."""
    llm.batch([turn(words("vote", 1000), words("question", 500))] * 6)


def two_agents(llm: Any, change: Callable[[Any], Any]) -> None:
    """Two agents with the same tools and other tasks take eight turns, in turns."""
    bound = llm.bind_tools(tools())
    both = [turn(words("agents", 500), words(("role", agent), 150)) for agent in range(2)]
    for at in range(8):
        for number, said in enumerate(both):
            bound.invoke(said)
            said += step((number, at), at)


PROGRAMS: Mapping[str, Program] = {
    "shared system prompt, 2 x 4": shared_system,
    "map-reduce, 8 + 1": map_reduce,
    "siblings and a join, twice": siblings,
    "6 chats of 3 turns": chats,
    "two borders": two_borders,
    "agent of 30 turns": agent,
    "RAG, documents in other order": documents,
    "refine over 6": refine,
    "6 samples of a prompt": samples,
    "two agents, same tools": two_agents,
}
