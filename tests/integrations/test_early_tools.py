"""Tools start while the model still writes, and everything else is as in the plain agent."""

from __future__ import annotations

import asyncio
import inspect
import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from langchain_core.tracers.base import BaseTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from langchain_weftline import ChatWeftline, EarlyTools
from tests.integrations.recording import recorded
from weftline.kit.early_tools import EarlyTurn, StartedTools


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


# Two calls. While the second is written, which takes 60 steps, the first can run.
TWO = called("search", query="rivers") + called("search", query="x " * 60)
RULES = [
    ("found rivers", "Done."),
    ("failed", "It failed."),
    ("no lakes", "No."),
    ("Error", "Too bad."),
    ("look", TWO),
    ("fail", called("search", query="fail") + called("search", query="x " * 20)),
    ("wrong", called("search", question="?") + called("search", query="x " * 20)),
    ("write", called("note", text="hi") + called("note", text="ho " * 20)),
    ("lakes", "Words first. " + called("search", query="lakes")),
]
OPTIONS = ("--null-step-s", "0.004")  # 250 words a second


def model(url: str, **more: Any) -> ChatWeftline:
    return ChatWeftline(base_url=url, temperature=0, max_tokens=600, **more)


@dataclass
class World(BaseCallbackHandler):
    """What happened, in order: models that ended, and functions of tools that ran."""

    happened: list[str] = field(default_factory=list)

    def on_llm_end(self, *args: Any, **more: Any) -> None:
        self.happened.append("model ended")

    def search(self, query: str) -> str:
        """Search."""
        self.happened.append(f"search {query.strip()[:6]}")
        if query == "fail":
            raise ValueError("failed")
        return f"no {query}" if query == "lakes" else f"found {query.strip()[:6]}"

    async def asearch(self, query: str) -> str:
        """Search."""
        await asyncio.sleep(0)
        return self.search(query)

    def note(self, text: str) -> str:
        """Write something down."""
        self.happened.append("noted")
        return "found rivers"

    @property
    def tools(self) -> list[BaseTool]:
        return [
            StructuredTool.from_function(self.search),
            StructuredTool.from_function(self.note),
        ]


class Tree(BaseTracer):
    """The run tree: kind, name, error and children of each run."""

    def _persist_run(self, run: Any) -> None:
        self.tree = self._of(run)

    def _of(self, run: Any) -> Any:
        outputs = run.outputs["output"].content if run.run_type == "tool" and run.outputs else None
        error = run.error.splitlines()[0] if run.error else None
        return run.run_type, run.name, error, outputs, [self._of(child) for child in run.child_runs]


def plain(message: BaseMessage) -> Any:
    """A message without what differs between any two runs."""
    found = message.model_dump(exclude={"id", "tool_call_id"})
    for call in found.get("tool_calls", ()):
        del call["id"]
    found["response_metadata"].pop("id", None)
    return found


def ran(
    url: str, early: bool, ask: str, run: Callable[[Any, Any, Any], Any] | None = None
) -> tuple[Any, Any, list[str]]:
    """The messages and the run tree of an agent, and what happened."""
    world, tree = World(), Tree()
    names = [one.name for one in world.tools]
    # A wrapper that does nothing, so that the graphs have equal nodes.
    middleware = [EarlyTools(["search"] if early else [])]
    agent: Any = create_agent(model(url), world.tools, middleware=middleware)
    assert names == ["search", "note"]
    config = {"callbacks": [world, tree]}
    state = {"messages": [("user", ask)]}
    answer = agent.invoke(state, config) if run is None else run(agent, state, config)
    return [plain(one) for one in answer["messages"]], tree.tree, world.happened


@pytest.mark.parametrize("ask", ["look", "lakes", "fail", "wrong", "write"])
def test_an_agent_is_the_plain_agent(url: str, ask: str) -> None:
    """Messages and run trees are equal, whether tools succeed, fail, or refuse their arguments.

    No function runs twice.
    """
    if ask == "fail":
        for early in (False, True):
            with pytest.raises(ValueError, match="failed"):
                ran(url, early, ask)
        return
    messages, tree, happened = ran(url, False, ask)
    early_messages, early_tree, early_happened = ran(url, True, ask)
    assert early_messages == messages
    assert early_tree == tree
    assert sorted(early_happened) == sorted(happened)


def test_a_read_only_tool_runs_while_the_model_writes(url: str) -> None:
    """The first search runs before the answer with both ends. A tool with effects never does."""
    assert ran(url, False, "look")[2][0] == "model ended"
    assert ran(url, True, "look")[2][0] == "search rivers"
    assert ran(url, True, "write")[2][0] == "model ended"


def test_a_streamed_agent_starts_tools_too(url: str) -> None:
    """The user sees the same chunks."""

    def streamed(agent: Any, state: Any, config: Any) -> Any:
        made = list(agent.stream(state, config, stream_mode=["messages", "values"]))
        said = [one[0] for kind, one in made if kind == "messages"]
        chunks.append([one.content for one in said if isinstance(one, AIMessageChunk)])
        return made[-1][1]

    chunks: list[Any] = []
    assert ran(url, True, "look", streamed)[2][0] == "search rivers"
    ran(url, False, "look", streamed)
    assert chunks[0] == chunks[1]


async def test_coroutines_start_on_the_loop(url: str) -> None:
    """In an async agent a coroutine starts as a task, and a function in a thread."""
    for asynchronous in (True, False):
        world = World()
        tool = (
            StructuredTool.from_function(coroutine=world.asearch, name="search")
            if asynchronous
            else StructuredTool.from_function(world.search)
        )
        agent: Any = create_agent(model(url), [tool], middleware=[EarlyTools(["search"])])
        await agent.ainvoke({"messages": [("user", "look")]}, {"callbacks": [world]})
        assert world.happened[0] == "search rivers"
        assert len(world.happened) == 4


def test_a_tool_node_hands_over_what_bind_tools_named(url: str) -> None:
    """A graph of the user's own, with ToolNode and tools that say that they only read."""
    world = World()
    tool = StructuredTool.from_function(world.search, metadata={"effects": "none"})
    early = EarlyTools()
    bound = model(url, early_tools=early).bind_tools([tool])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([tool], wrap_tool_call=early))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    compiled: Any = graph.compile()
    compiled.invoke({"messages": [("user", "look")]}, {"callbacks": [world]})
    assert world.happened[0] == "search rivers" and len(world.happened) == 4


async def test_a_tool_that_mcp_calls_read_only_starts_early(url: str) -> None:
    """langchain-mcp-adapters makes tools of this form. The hint counts unless it is refused, is no
    true, or the tool's own effects say something else."""

    async def call_tool(
        runtime: Annotated[object | None, InjectedToolArg()] = None, **arguments: Any
    ) -> tuple[str, None]:
        assert world.happened or runtime is None
        return await world.asearch(**arguments), None

    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

    def tool(**metadata: Any) -> StructuredTool:
        return StructuredTool(
            name="search",
            description="Search.",
            args_schema=schema,
            coroutine=call_tool,
            response_format="content_and_artifact",
            metadata=metadata,
        )

    hint = {"readOnlyHint": True, "idempotentHint": None}
    for early, made, is_early in (
        (EarlyTools(), tool(**hint), True),
        (EarlyTools(annotations=False), tool(**hint), False),
        (EarlyTools(annotations=False), tool(**hint, effects="none"), True),
        (EarlyTools(), tool(**hint, effects="once"), False),
        (EarlyTools(), tool(readOnlyHint=False, idempotentHint=True), False),
    ):
        world = World()
        agent: Any = create_agent(model(url), [made], middleware=[early])
        await agent.ainvoke({"messages": [("user", "look")]}, {"callbacks": [world]})
        first = "search rivers" if is_early else "model ended"
        assert (world.happened[0], len(world.happened)) == (first, 4)


def test_what_needs_its_run_waits_for_it(url: str) -> None:
    """Injected arguments, and functions that a human or a graph may interrupt."""
    happened: list[str] = []

    def injected(query: str, user: Annotated[str, InjectedToolArg] = "none") -> str:
        """Search."""
        happened.append(user)
        return "found rivers"

    def asks(query: str) -> str:
        """Search."""
        return str(interrupt("may I?"))

    early = EarlyTools(["search"])
    assert not early._is_eligible(StructuredTool.from_function(injected, name="search"))
    asking = StructuredTool.from_function(asks, name="search")
    agent: Any = create_agent(
        model(url), [asking], middleware=[early], checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": "1"}}
    answer = agent.invoke({"messages": [("user", "lakes")]}, config)
    assert [one.value for one in answer["__interrupt__"]] == ["may I?"]
    assert agent.invoke(None, config)["__interrupt__"], "it still waits"


@dataclass
class Busy(World):
    """A search that fails at its first attempt."""

    def search(self, query: str) -> str:
        """Search."""
        found = super().search(query)
        if self.happened.count("search rivers") == 1 and query == "rivers":
            raise ValueError("busy")
        return found


def search_of(world: World, is_async: bool) -> StructuredTool:
    """The search of a world as a tool."""
    if is_async:
        return StructuredTool.from_function(coroutine=world.asearch, name="search")
    return StructuredTool.from_function(world.search)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("retries_inside", [False, True])
async def test_a_second_attempt_runs_the_tool(
    retries_inside: bool, is_async: bool, url: str
) -> None:
    """A middleware that retries gets the early call's failure once, wherever it stands."""
    world = Busy()
    tool = search_of(world, is_async)
    middleware: list[Any] = [
        EarlyTools(["search"]),
        ToolRetryMiddleware(max_retries=1, initial_delay=0),
    ]
    ordered = middleware if retries_inside else middleware[::-1]
    agent: Any = create_agent(model(url), [tool], middleware=ordered)
    given: Any = ({"messages": [("user", "look")]}, {"callbacks": [world]})
    made = await agent.ainvoke(*given) if is_async else agent.invoke(*given)
    found = [one.content for one in made["messages"] if one.type == "tool"]
    assert found == ["found rivers", "found x x x "]
    assert world.happened[0] == "search rivers"
    assert world.happened.count("search rivers") == 2


def test_a_tool_that_needs_approval_runs_after_it(url: str) -> None:
    """LangChain asks a person after the model's turn. Nothing has run by then."""
    world = World()
    asks = HumanInTheLoopMiddleware(interrupt_on={"note": True})
    middleware = [EarlyTools(["search"]), asks]
    saver = InMemorySaver()
    agent: Any = create_agent(model(url), world.tools, middleware=middleware, checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}, "callbacks": [world]}
    answer = agent.invoke({"messages": [("user", "write")]}, config)
    assert answer["__interrupt__"] and world.happened == ["model ended"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("asks_inside", [False, True])
async def test_a_call_that_a_person_edits_gets_its_own_result(
    asks_inside: bool, is_async: bool, url: str
) -> None:
    """LangChain changes the call's arguments as a middleware, wherever EarlyTools stands."""
    world = World()
    tool = search_of(world, is_async)
    middleware: list[Any] = [
        EarlyTools(["search"]),
        HumanInTheLoopMiddleware(interrupt_on={"search": True}),
    ]
    ordered = middleware if asks_inside else middleware[::-1]
    agent: Any = create_agent(model(url), [tool], middleware=ordered, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}, "callbacks": [world]}
    edited = {"name": "search", "args": {"query": "lakes"}}
    resume = Command(
        resume={"decisions": [{"type": "edit", "edited_action": edited}, {"type": "approve"}]}
    )
    for given in ({"messages": [("user", "look")]}, resume):
        made = await agent.ainvoke(given, config) if is_async else agent.invoke(given, config)
    found = [one.content for one in made["messages"] if one.type == "tool"]
    assert found[0].endswith("no lakes")
    assert found[1:] == ["found x x x "]
    ran = ["search lakes", "search rivers", "search x x x "]
    assert sorted(world.happened) == ["model ended", "model ended", *ran]


def test_an_answer_that_breaks_off_is_asked_for_again(url: str) -> None:
    """As the openai client does where answers do not stream. A tool that had started runs again."""
    world = World()
    tools = [StructuredTool.from_function(world.search)]
    with recorded(url, broken="/v1/chat/completions") as proxy:
        agent: Any = create_agent(
            model(proxy.url, max_retries=1), tools, middleware=[EarlyTools(["search"])]
        )
        with pytest.raises(Exception, match=r"[Cc]onnection|closed|incomplete"):
            agent.invoke({"messages": [("user", "look")]})
        asked = [body.get("stream") for body in proxy.bodies("/v1/chat/completions")]
    assert asked == [True, None, None] or asked == [True, False, False]


def test_a_graph_of_the_users_own_needs_no_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """ToolNode is langgraph's. Without the package `langchain` EarlyTools is a plain class."""
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)
    early = runpy.run_path(inspect.getfile(EarlyTools))["EarlyTools"](["search"])
    assert early._is_eligible(World().tools[0]) and not early._is_eligible(World().tools[1])


def test_a_result_goes_to_the_call_that_started_it() -> None:
    """Another attempt may have written another call under the same id. A result goes out once."""
    started: StartedTools[str] = StartedTools()
    begun: list[Any] = []

    def start(name: str, arguments: dict[str, Any]) -> str | None:
        begun.append((name, arguments))
        return "result" if name == "search" else None

    turn = EarlyTurn(start, started)
    for piece in ('{"query": "a', '", "n": 1', "}"):
        assert begun == []
        turn.see(0, "id0", "search" if piece[0] == "{" else None, piece)
    turn.see(1, "id1", "note", "{}")
    turn.see(2, "id2", "search", '{"query": "cut off"')
    turn.see(3, "id3", "search", "{}")
    assert begun == [("search", {"query": "a", "n": 1}), ("note", {}), ("search", {})]
    assert started.claim("id0", "search", {"query": "a", "n": 1}) == "result"
    assert started.claim("id0", "search", {"query": "a", "n": 1}) is None
    assert started.claim("id1", "note", {}) is None
    assert started.claim("id3", "search", {"query": "b"}) is None, "another call"
    assert started.claim("id3", "search", {}) is None, "its result was dropped"


def test_functions_beyond_the_limit_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that hangs keeps one of the threads, and no others are started in its place."""
    from threading import BoundedSemaphore

    from weftline.kit import early_tools as early

    monkeypatch.setattr(early, "_running", BoundedSemaphore(1))
    release = Event()
    first = early.in_thread(release.wait)
    assert first is not None and early.in_thread(release.wait) is None
    release.set()
    assert first.result() is True
