"""EarlyTools: starts read-only tools while the model still writes, for LangChain's agents.

LangChain still runs each tool, with its callbacks and its error handling. Only the tool's function
is replaced: the new one waits for the result of the call that has started.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, Tool

from weftline.kit.early_tools import EarlyTurn, StartedTools, as_early_turn, in_thread

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
else:
    try:
        from langchain.agents.middleware import AgentMiddleware
    except ImportError:  # a graph of the user's own needs only langgraph

        class AgentMiddleware:
            """Stands for LangChain's class where `langchain` is not installed."""

            def __class_getitem__(cls, of: object) -> type:
                return cls


log = logging.getLogger(__name__)

# Parameters that LangChain fills in when it runs a tool. They have no value before that.
_OF_RUNS = {"callbacks", "run_manager", "config"}
_RUNTIME = "runtime"  # that of a run; the function of an MCP tool does without it

IsFor = Callable[[tuple[Any, ...], dict[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class BegunTool:
    """A tool's function that has started, with its arguments."""

    result: Future[Any] | asyncio.Task[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def is_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are its arguments. A middleware behind EarlyTools, such as that of a person
        who edits a call, may have changed them."""
        if _RUNTIME not in self.kwargs:
            kwargs = {name: value for name, value in kwargs.items() if name != _RUNTIME}
        return (args, kwargs) == (self.args, self.kwargs)


class EarlyTools(AgentMiddleware[Any, Any, Any]):
    """Starts the tools of a call as soon as the call is complete, before the model's turn ends.

    Only tools without effects start early: those named in `read_only`, those whose `metadata` is
    `{"effects": "none"}`, and those of langchain-mcp-adapters whose MCP server states the
    `readOnlyHint`, unless `annotations` is False or their metadata has other effects. Every other
    tool runs when LangChain runs it. The result of an early call is used only if the model's final
    answer has the same call.

    In an agent:
        ```python
        agent = create_agent(ChatWeftline(), tools, middleware=[EarlyTools(["search"])])
        ```

    In a graph of your own:
        ```python
        early = EarlyTools(["search"])
        model = ChatWeftline(early_tools=early).bind_tools(tools)
        node = ToolNode(tools, wrap_tool_call=early, awrap_tool_call=early.awrap_tool_call)
        ```

    A tool that asks a person for approval, calls other runnables or interrupts the graph must not
    be named, because it would do so before its run begins.
    """

    def __init__(self, read_only: Iterable[str] = (), *, annotations: bool = True) -> None:
        super().__init__()
        if isinstance(read_only, str):
            raise TypeError("read_only is a list of names: write EarlyTools(['search'])")
        self._read_only = frozenset(read_only)
        self._annotations = annotations
        self._known: dict[str, BaseTool] = {}
        self._started: StartedTools[BegunTool] = StartedTools()

    def learn(self, tools: Iterable[Any]) -> None:
        """Note the tools that a model may call. For ChatWeftline."""
        self._known |= {one.name: one for one in tools if isinstance(one, BaseTool)}

    def turn(self) -> EarlyTurn[BegunTool]:
        """One model call with the tools that were learned. For ChatWeftline."""
        return self._turn(self._known.values())

    def _turn(self, tools: Iterable[Any]) -> EarlyTurn[BegunTool]:
        eligible = {tool.name: tool for tool in tools if self._is_eligible(tool)}
        return EarlyTurn(partial(_start, eligible), self._started)

    def _is_eligible(self, tool: Any) -> bool:
        if not isinstance(tool, StructuredTool | Tool):
            return False
        told = tool.metadata or {}
        hinted = self._annotations and told.get("readOnlyHint") is True
        reads = told.get("effects", "none" if hinted else "once") == "none"
        return (reads or tool.name in self._read_only) and not _needs_run(tool)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Let tools start during the model call. LangChain's agent calls this."""
        with as_early_turn(self._turn(request.tools)):
            return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Let tools start during the model call. LangChain's agent calls this."""
        with as_early_turn(self._turn(request.tools)):
            return await handler(request)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool, or take its result if it has started. LangChain's agent calls this."""
        return handler(self._with_result(request))

    __call__ = wrap_tool_call  # ToolNode takes a function

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool, or take its result if it has started. LangChain's agent calls this."""
        return await handler(self._with_result(request, is_async=True))

    def _with_result(self, request: Any, is_async: bool = False) -> Any:
        call, tool = request.tool_call, request.tool
        running = self._started.claim(call.get("id"), call["name"], call["args"])
        if running is None or not self._is_eligible(tool):
            return request
        result = running.result
        if isinstance(result, Future):
            return request.override(tool=_handing_over(tool, result, running.is_for))
        if not is_async:
            return request
        return request.override(tool=_ahanding_over(tool, result, running.is_for))


def _needs_run(tool: StructuredTool | Tool) -> bool:
    """Whether the function has parameters that only LangChain's run of the tool can fill in."""
    if not isinstance(tool.get_input_schema(), type):
        return True
    shown = tool.tool_call_schema
    known = getattr(shown, "model_fields", {})
    for function in (tool.func, tool.coroutine):
        parameters = inspect.signature(function).parameters if function is not None else {}
        for name, parameter in parameters.items():
            named = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            asks_for_config = parameter.annotation in (RunnableConfig, "RunnableConfig")
            # The function of an MCP tool runs without the runtime, too, which is None then.
            is_mcp = name == _RUNTIME and "readOnlyHint" in (tool.metadata or {})
            injected = isinstance(tool, StructuredTool) and name not in known and not is_mcp
            if named and (name in _OF_RUNS or asks_for_config or injected):
                return True
    return False


def _start(tools: Mapping[str, BaseTool], name: str, arguments: dict[str, Any]) -> BegunTool | None:
    """Start the function of a tool; None if the call has to wait for its turn."""
    tool = tools.get(name)
    if not isinstance(tool, StructuredTool | Tool):
        return None
    try:
        args, kwargs = tool._to_args_and_kwargs(dict(arguments), None)
    except Exception:
        return None  # LangChain makes the error of these arguments, in the tool's own run
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is not None and tool.coroutine is not None:
        task = loop.create_task(_outside_of_runs(tool.coroutine, args, kwargs))
        task.add_done_callback(_read_error)
        return BegunTool(task, args, kwargs)
    function = tool.func
    if function is None:
        return None
    future = in_thread(lambda: _call_outside(function, args, kwargs))
    return None if future is None else BegunTool(future, args, kwargs)


def _call_outside(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    # Without a run, functions such as `interrupt` raise a RuntimeError. LangChain then runs the
    # call in its turn.
    var_child_runnable_config.set(None)
    return function(*args, **kwargs)


async def _outside_of_runs(function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> Any:
    var_child_runnable_config.set(None)
    return await function(*args, **kwargs)


def _read_error(task: asyncio.Task[Any]) -> None:
    """Log the task's error. Its call raises it, but a turn that breaks off makes no such call."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a tool that started early has failed", exc_info=error)


def _handing_over(tool: StructuredTool | Tool, result: Future[Any], is_for: IsFor) -> BaseTool:
    """The tool with a function that waits for the early call's result.

    If the early call failed because it was outside of a run, the function runs the tool. So does a
    second attempt, such as that of a middleware that retries, and a call with other arguments.
    """
    function = tool.func
    assert function is not None, "it has started"
    first = [result]

    def wait(*args: Any, **kwargs: Any) -> Any:
        if first and is_for(args, kwargs):
            try:
                return first.pop().result()
            except RuntimeError:
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return tool.model_copy(update={"func": wait, "coroutine": None})


def _ahanding_over(
    tool: StructuredTool | Tool, result: asyncio.Task[Any], is_for: IsFor
) -> BaseTool:
    function = tool.coroutine
    assert function is not None, "it has started"
    first = [result]

    async def wait(*args: Any, **kwargs: Any) -> Any:
        if first and is_for(args, kwargs):
            try:
                return await first.pop()
            except RuntimeError:
                return await function(*args, **kwargs)
        return await function(*args, **kwargs)

    return tool.model_copy(update={"coroutine": wait})
