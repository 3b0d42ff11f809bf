"""The synchronous client: the asynchronous one, for programs without coroutines.

Each method runs its asynchronous counterpart on the event loop of `weftline.sdk.background`, and
waits. So threads may share a client, and a program may use it inside a loop of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any, Self

import httpx2

from weftline.contract.protocol import Call, Criterion
from weftline.contract.steps import Step
from weftline.sdk.aclient import AsyncClient, AsyncSession
from weftline.sdk.agent_run import AsyncAgentRun
from weftline.sdk.agent_state import AgentResult, AgentTool, Prompt
from weftline.sdk.background import BACKGROUND, Relay
from weftline.sdk.http import CONNECT_S, MAX_RETRIES, OnGraph
from weftline.sdk.own_functions import OwnThreads
from weftline.sdk.session_base import Answer, SessionBase, SubmittedCall
from weftline.sdk.variable_base import VariableBase


class Client:
    """A connection to one weftline server. Use it with `with`, or call `close`.

    `base_url` is the server's address. It defaults to the environment variable WEFTLINE_BASE_URL,
    and without that to http://127.0.0.1:8600. `api_key` defaults to WEFTLINE_API_KEY; without a
    key, none is sent. `headers` and `query` are sent with every request, through `proxy` or else
    the environment's proxies. `transport` replaces httpx2's transport, for example in tests.

    `timeout_s` is the longest silence of the server, in seconds, before a request raises Timeout.
    None means no limit, except for a stream, where the server sends a ping every 15 seconds.
    `connect_s` is the longest time to open a connection, where `timeout_s` is not shorter.
    `max_retries` is how often a request is sent again after a broken connection or a refusal.

    Any method that sends a request may raise ConnectionFailed, Unauthorized and Overloaded. All
    errors are in `weftline.errors`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        proxy: str | None = None,
        timeout_s: float | None = None,
        connect_s: float | None = CONNECT_S,
        max_retries: int = MAX_RETRIES,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        if transport is not None and not isinstance(transport, httpx2.AsyncBaseTransport):
            raise TypeError("requests are sent on an event loop: give an httpx2.AsyncBaseTransport")
        self.remote = AsyncClient(
            base_url,
            api_key,
            headers=headers,
            query=query,
            proxy=proxy,
            timeout_s=timeout_s,
            connect_s=connect_s,
            max_retries=max_retries,
            transport=transport,
        )
        self.remote.connection.when_dropped(BACKGROUND.dispose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Sessions stay on the server until they are closed or expire."""
        BACKGROUND.run(self.remote.close())

    def session(self) -> Session:
        """Open a session for one run of an application. A `with` block closes it."""
        return Session(self).open()

    def run(
        self,
        calls: Sequence[Call],
        get: Sequence[str],
        *,
        steps: Sequence[Step] = (),
        graph: bool = False,
    ) -> Answer:
        """Run a whole application with one request, and return the values of some variables.

        `calls` and `steps` are the application, and `get` names the variables to return. With
        `graph`, the answer also has the session's graph. The server opens a session for the
        request and closes it at the end. Raises the error of the call that failed first, and
        GraphError if the calls do not make a graph.
        """
        return BACKGROUND.run(self.remote.run(calls, get, steps=steps, graph=graph))

    def stream(
        self, calls: Sequence[Call], variable: str, *, on_graph: OnGraph | None = None
    ) -> Generator[str, None, None]:
        """Run a whole application with one request, and stream the text of one variable.

        `on_graph` is a function. It is called with the session's graph when the text has ended.
        Raises the error of the call that failed first.
        """
        if on_graph is None:
            return _read(self.remote.stream(calls, variable))
        # The function runs in the reader's thread, where it may use the client.
        graphs: list[dict[str, Any]] = []
        texts = self.remote.stream(calls, variable, on_graph=graphs.append)
        return _read(texts, lambda: on_graph(graphs[0]))

    def models(self) -> list[str]:
        """The names of the served models. The default model comes first."""
        return BACKGROUND.run(self.remote.models())

    def sessions(self, *, limit: int = 100, text: str = "") -> list[dict[str, Any]]:
        """The sessions of your API key: open ones, and those closed a short time ago.

        The session that was opened last comes first. There are at most `limit` rows. A row has the
        session's id, its name, its state, how many calls are in each state, and its tokens so far.
        With `text` only sessions whose prompts or values contain it are listed.
        """
        return BACKGROUND.run(self.remote.sessions(limit=limit, text=text))

    def advice(self, *, limit: int = 100, lengths: bool = False) -> list[dict[str, Any]]:
        """Where prompts of your programs part although equal text follows, which is computed anew.

        The finding that has cost most tokens comes first. There are at most `limit` rows. A row has
        a sentence with what to do in `says`, and in `lost_tokens` what was computed anew so far.
        `before` and `after` are the two texts at their first difference, or None if the server does
        not log prompts. With `lengths` a row has the lengths of recorded calls, before and after
        the change, for a simulation.
        """
        return BACKGROUND.run(self.remote.advice(limit=limit, lengths=lengths))


class Variable(VariableBase):
    """A variable of the synchronous client."""

    owner: Session

    def get(self, criteria: Criterion | str | None = None, timeout_s: float | None = None) -> Any:
        """Wait until the variable is ready, and return its value.

        `criteria` says what matters to you: "latency", "throughput", "ttft" or "tpot". None means
        latency. `timeout_s` is the longest wait in seconds, and None means no limit. Raises the
        error of the call that failed first, or Timeout.
        """
        return self.owner.get(self.id, criteria, timeout_s)

    def stream(self, criteria: Criterion | str | None = None) -> Generator[str, None, None]:
        """The text, in parts, while the model generates it. `criteria` is as in `get`."""
        return self.owner.stream(self.id, criteria)

    def set(self, value: Any) -> None:
        """Set the value. The calls that wait for it start. Raises AlreadySet."""
        self.owner.set(self.id, value)

    def cancel(self) -> None:
        """Cancel the call that generates the variable, and all calls that depend on it."""
        self.owner.cancel(self.id)


class Session(SessionBase[Variable]):
    """One run of an application.

    Inside its `with` block, each semantic function that you call adds a call to this session.
    """

    def __init__(self, client: Client, id: str = "") -> None:
        self._remote = AsyncSession(client.remote, id, OwnThreads())
        super().__init__(self._remote.state)

    def open(self) -> Self:
        """Open the session on the server. The server chooses its `id`."""
        BACKGROUND.run(self._remote.open())
        return self

    def __enter__(self) -> Self:
        if not self.id:
            self.open()
        self._enter()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit()
        self.close()

    def _variable(self, id: str) -> Variable:
        return Variable(self, id)

    def flush(self) -> None:
        """Send the calls that were added since the last submit. `get` and `stream` also do this."""
        BACKGROUND.run(self._remote.flush())

    def submit(self, calls: Sequence[Call], *, detach: bool = False) -> list[SubmittedCall]:
        """Send `calls` now. The server accepts all of them or none.

        With `detach` the calls run to their end although nobody reads their outputs. Raises
        GraphError if the calls do not make a graph.
        """
        return BACKGROUND.run(self._remote.submit(calls, detach=detach))

    def set(self, variable: str, value: Any) -> None:
        """Set the value of the variable with this id. Raises AlreadySet.

        A value is a text or any other JSON value except None.
        """
        BACKGROUND.run(self._remote.set(variable, value))

    def cancel(self, variable: str) -> None:
        """Cancel the call that generates a variable. A variable that is ready keeps its value."""
        BACKGROUND.run(self._remote.cancel(variable))

    def get(
        self,
        variable: str,
        criteria: Criterion | str | None = None,
        timeout_s: float | None = None,
        wait: bool = False,
    ) -> Any:
        """Wait until the variable with this id is ready, and return its value.

        `criteria` says what matters to you: "latency", "throughput", "ttft" or "tpot". None means
        latency. It also holds for the other calls that this get sends, until you get their outputs.
        `timeout_s` is the longest wait in seconds, and None means no limit. With `wait` the
        variable may be one that no call writes yet. Raises the error of the call that failed first,
        NoProducer or Timeout.
        """
        return BACKGROUND.run(self._remote.get(variable, criteria, timeout_s, wait))

    def stream(
        self, variable: str, criteria: Criterion | str | None = None, wait: bool = False
    ) -> Generator[str, None, None]:
        """The text of a variable, in parts, while the model generates it.

        The parameters are those of `get`.
        """
        BACKGROUND.run(self._remote.send(criteria))
        return _read(self._remote.stream(variable, criteria, wait))

    def agent(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[AgentTool] | None = None,
        system: str | None = None,
        **options: Any,
    ) -> AgentRun:
        """Run an agent: the model answers and calls tools in turns, until it calls none.

        `prompt` is the user's message, or a list of messages of OpenAI's API. `system` is the text
        of a system message before them. `tools` has functions, which run in this process, and
        names of tools that run in the server. None offers the model all tools of the server. A
        function with `@tool(effects="none")` of `weftline.toolkit` starts as soon as its arguments
        are complete, while the model still writes. `options` are `model` and other
        fields of a call, and those of `Sampling`, such as `max_tokens`.
        """
        run = self._remote.agent(prompt, tools=tools, system=system, **options)
        return AgentRun(run)

    def graph(self) -> dict[str, Any]:
        """The session's graph as JSON: calls, variables, edges, and the seconds of each phase."""
        return BACKGROUND.run(self._remote.graph())

    def events(self) -> list[dict[str, Any]]:
        """The newest events of the session, the oldest of them first.

        Each event has its number `n`, its time `t` in seconds, its kind `event`, what it is
        `about`, and a `text`.
        """
        return BACKGROUND.run(self._remote.events())

    def close(self) -> None:
        """Close the session on the server, which cancels its running calls.

        A second `close` does nothing.
        """
        BACKGROUND.run(self._remote.close())


class AgentRun:
    """One run of an agent. Iterate over `stream` for its text, or call `get` for its result."""

    def __init__(self, remote: AsyncAgentRun) -> None:
        self._remote = remote
        self._texts: Generator[str, None, None] | None = None

    def stream(self) -> Generator[str, None, None]:
        """The model's text in all its turns, in parts, as it is generated."""
        if self._texts is None:
            self._texts = _read(self._remote.stream())
        return self._texts

    def get(self) -> AgentResult:
        """Wait for the end of the run, and return its result."""
        for _ in self.stream():
            pass
        return BACKGROUND.run(self._remote.get())


def _read(
    texts: AsyncGenerator[str, None], then: Callable[[], None] | None = None
) -> Generator[str, None, None]:
    """The texts as they come. A reader that leaves ends the request, too."""
    yield from Relay(texts)
    if then is not None:
        then()
