"""The asynchronous client: sessions with their variables and calls, for coroutines."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

import httpx2

from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import Call, Criterion, OpenSession, SetVariable, SubmitBody
from weftline.contract.steps import Step
from weftline.sdk.agent_run import AsyncAgentRun
from weftline.sdk.agent_state import Agent, AgentTool, Prompt
from weftline.sdk.connection import AsyncConnection
from weftline.sdk.control_verbs import SessionState
from weftline.sdk.heartbeat import HEARTBEATS, SessionBeat
from weftline.sdk.http import CONNECT_S, MAX_RETRIES, OnGraph, get_body, sessions_path
from weftline.sdk.own_functions import Compute, on_the_loop
from weftline.sdk.session_base import Answer, SessionBase, SubmittedCall
from weftline.sdk.step_tasks import StepTasks
from weftline.sdk.variable_base import VariableBase
from weftline.sdk.watch_events import Event, event_of


class AsyncClient:
    """A connection to one weftline server. Use it with `async with`, or await `close`.

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
        self.connection = AsyncConnection(
            base_url,
            api_key,
            headers=headers or {},
            query=query or {},
            proxy=proxy,
            timeout_s=timeout_s,
            connect_s=connect_s,
            max_retries=max_retries,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Sessions stay on the server until they are closed or expire."""
        await self.connection.close()

    def session(self) -> AsyncSession:
        """A session for one run of an application. It is not open yet.

        Open it with `async with` or `await session.open()`.
        """
        return AsyncSession(self)

    async def run(
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
        body = SubmitBody(
            calls=tuple(calls), steps=tuple(steps), get=tuple(get), graph=graph, close=True
        )
        return Answer.of(await self.connection.request("POST", "/v1/submit", body))

    def stream(
        self, calls: Sequence[Call], variable: str, *, on_graph: OnGraph | None = None
    ) -> AsyncGenerator[str, None]:
        """Run a whole application with one request, and stream the text of one variable.

        `on_graph` is a function. It is called with the session's graph when the text has ended.
        Raises the error of the call that failed first.
        """
        graph = on_graph is not None
        body = SubmitBody(calls=tuple(calls), stream=variable, graph=graph, close=True)
        return self.connection.texts("/v1/submit", body, on_graph)

    async def models(self) -> list[str]:
        """The names of the served models. The default model comes first."""
        return [
            model["id"] for model in (await self.connection.request("GET", "/v1/models"))["data"]
        ]

    async def sessions(self, *, limit: int = 100, text: str = "") -> list[dict[str, Any]]:
        """The sessions of your API key: open ones, and those closed a short time ago.

        The session that was opened last comes first. There are at most `limit` rows. A row has the
        session's id, its name, its state, how many calls are in each state, and its tokens so far.
        With `text` only sessions whose prompts or values contain it are listed.
        """
        answer = await self.connection.request("GET", sessions_path(limit, text))
        found: list[dict[str, Any]] = answer["sessions"]
        return found

    async def advice(self, *, limit: int = 100, lengths: bool = False) -> list[dict[str, Any]]:
        """Where prompts of your programs part although equal text follows, which is computed anew.

        The finding that has cost most tokens comes first. There are at most `limit` rows. A row has
        a sentence with what to do in `says`, and in `lost_tokens` what was computed anew so far.
        `before` and `after` are the two texts at their first difference, or None if the server does
        not log prompts. With `lengths` a row has the lengths of recorded calls, before and after
        the change, for a simulation.
        """
        query = f"limit={limit}" + ("&lengths=true" if lengths else "")
        answer = await self.connection.request("GET", f"/v1/advice?{query}")
        rows: list[dict[str, Any]] = answer["advice"]
        return rows

    # Only the adapters need what follows, so the synchronous client has none of it.

    async def watch(
        self, submit: SubmitBody, *, max_retries: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send `submit`, and yield what the server pushes for the variables in its `watch`.

        The events are those of `weftline.watching`. `max_retries` defaults to that of the client.
        If you close the generator early, the server cancels the calls that no other reader waits
        for.
        """
        async with aclosing(self.connection.events("/v1/submit", submit, max_retries)) as events:
            async for event in events:
                if (said := event_of(event)) is not None:
                    yield said

    async def set(self, session: str, variable: str, body: SetVariable) -> None:
        """Set a variable of a session to a value, or make it fail with an error.

        Raises AlreadySet if the variable has a value or a call that writes it, and UnknownSession.
        """
        await self.connection.request("PUT", f"/v1/session/{session}/variable/{variable}", body)

    async def context_limits(self) -> dict[str, int]:
        """The context limit of each served model, in tokens. The default model comes first."""
        found = (await self.connection.request("GET", "/v1/models"))["data"]
        limits = ((model["id"], model.get("max_model_len")) for model in found)
        return {name: limit for name, limit in limits if limit is not None}  # not of embedders

    async def openai(self, route: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request of OpenAI's API and return the response's JSON.

        `route` is the path after `/v1/`: `chat/completions` or `completions`.
        """
        answer: dict[str, Any] = await self.connection.request("POST", f"/v1/{route}", request)
        return answer

    async def openai_stream(
        self, route: str, request: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request of OpenAI's API and yield the chunks of the response, as JSON objects.

        `request` must have `"stream": true`. `route` is the path after `/v1/`.
        """
        body = {**request, "stream": True}
        async with aclosing(self.connection.events(f"/v1/{route}", body)) as events:
            async for event in events:
                if event.data and event.data != "[DONE]":
                    chunk = json.loads(event.data)
                    if "error" in chunk:
                        raise WeftlineError.from_body(chunk, 0)
                    yield chunk


class AsyncVariable(VariableBase):
    """A variable of the asynchronous client."""

    owner: AsyncSession

    def __await__(self) -> Generator[Any, None, Any]:
        return self.get().__await__()

    async def get(
        self, criteria: Criterion | str | None = None, timeout_s: float | None = None
    ) -> Any:
        """Wait until the variable is ready, and return its value.

        `criteria` says what matters to you: "latency", "throughput", "ttft" or "tpot". None means
        latency. `timeout_s` is the longest wait in seconds, and None means no limit. Raises the
        error of the call that failed first, or Timeout.
        """
        return await self.owner.get(self.id, criteria, timeout_s)

    def stream(self, criteria: Criterion | str | None = None) -> AsyncGenerator[str, None]:
        """The text, in parts, while the model generates it. `criteria` is as in `get`."""
        return self.owner.stream(self.id, criteria)

    async def set(self, value: Any) -> None:
        """Set the value. The calls that wait for it start. Raises AlreadySet."""
        await self.owner.set(self.id, value)

    async def cancel(self) -> None:
        """Cancel the call that generates the variable, and all calls that depend on it."""
        await self.owner.cancel(self.id)


class AsyncSession(SessionBase[AsyncVariable]):
    """One run of an application.

    Inside its `async with` block, each semantic function that you call adds a call to this session.
    """

    def __init__(self, client: AsyncClient, id: str = "", compute: Compute = on_the_loop) -> None:
        super().__init__(SessionState(id))
        self._connection = client.connection
        self._compute = compute
        self._beat: SessionBeat | None = None
        self._steps = StepTasks(self.state, self._connection, compute)

    async def open(self) -> Self:
        """Open the session on the server. The server chooses its `id`."""
        beats = self._connection.is_own  # another transport may belong to the user's event loop
        opened = await self._connection.request("POST", "/v1/session", OpenSession(beats=beats))
        self.state.id = opened["session_id"]
        if beats:
            self._beat = SessionBeat(self.state, self._connection)
            HEARTBEATS.add(self._beat)
        return self

    async def __aenter__(self) -> Self:
        if not self.id:
            await self.open()
        self._enter()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._exit()
        await self.close()

    def _variable(self, id: str) -> AsyncVariable:
        return AsyncVariable(self, id)

    async def flush(self) -> None:
        """Send the calls that were added since the last submit. `get` and `stream` also do this."""
        await self.send(None)

    async def send(self, criteria: Criterion | str | None) -> None:
        """`flush` for a reader with this criterion."""
        submit = self._take_pending(criteria=criteria)
        computations = self._take_computations()
        if submit is not None and computations is not None:
            await self._steps.start(submit, computations)
        elif submit is not None:
            await self._connection.request("POST", "/v1/submit", submit)

    async def submit(self, calls: Sequence[Call], *, detach: bool = False) -> list[SubmittedCall]:
        """Send `calls` now. The server accepts all of them or none.

        With `detach` the calls run to their end although nobody reads their outputs. Raises
        GraphError if the calls do not make a graph.
        """
        await self.flush()
        body = SubmitBody(session_id=self.id, calls=tuple(calls), detach=detach)
        answer = await self._connection.request("POST", "/v1/submit", body)
        return [SubmittedCall.of(call) for call in answer["calls"]]

    async def set(self, variable: str, value: Any) -> None:
        """Set the value of the variable with this id. Raises AlreadySet.

        A value is a text or any other JSON value except None.
        """
        path = f"/v1/session/{self.id}/variable/{variable}"
        await self._connection.request("PUT", path, SetVariable(value=value))

    async def cancel(self, variable: str) -> None:
        """Cancel the call that generates a variable. A variable that is ready keeps its value."""
        await self.flush()
        await self._connection.request("DELETE", f"/v1/session/{self.id}/variable/{variable}")

    async def get(
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
        if timeout_s is None and not wait and not self.state.computations:
            submit = self._take_pending((variable,), criteria)
            if submit is not None:  # the calls go, and the value comes, in one round trip
                answer = await self._connection.request("POST", "/v1/submit", submit)
                return answer["values"][variable]
        await self.send(criteria)
        body = get_body(self.id, variable, criteria, timeout_s, wait)
        with self._own_failures():
            return (await self._connection.request("POST", "/v1/get", body))["value"]

    async def stream(
        self, variable: str, criteria: Criterion | str | None = None, wait: bool = False
    ) -> AsyncGenerator[str, None]:
        """The text of a variable, in parts, while the model generates it.

        The parameters are those of `get`.
        """
        await self.send(criteria)
        body = get_body(self.id, variable, criteria, None, wait, stream=True)
        async for text in self._connection.texts("/v1/get", body):
            yield text

    def agent(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[AgentTool] | None = None,
        system: str | None = None,
        **options: Any,
    ) -> AsyncAgentRun:
        """Run an agent: the model answers and calls tools in turns, until it calls none.

        `prompt` is the user's message, or a list of messages of OpenAI's API. `system` is the text
        of a system message before them. `tools` has functions, which run in this process, and
        names of tools that run in the server. None offers the model all tools of the server. A
        function with `@tool(effects="none")` of `weftline.toolkit` starts as soon as its arguments
        are complete, while the model still writes. `options` are `model` and other
        fields of a call, and those of `Sampling`, such as `max_tokens`.
        """
        made = Agent(self.variable().id, prompt, tools, system, options)
        return AsyncAgentRun(self.state, self.flush, self._connection, made, self._compute)

    async def graph(self) -> dict[str, Any]:
        """The session's graph as JSON: calls, variables, edges, and the seconds of each phase."""
        answer: dict[str, Any] = await self._connection.request(
            "GET", f"/v1/session/{self.id}/graph"
        )
        return answer

    async def events(self) -> list[dict[str, Any]]:
        """The newest events of the session, the oldest of them first.

        Each event has its number `n`, its time `t` in seconds, its kind `event`, what it is
        `about`, and a `text`.
        """
        answer = await self._connection.request("GET", f"/v1/session/{self.id}/events")
        events: list[dict[str, Any]] = answer["events"]
        return events

    async def close(self) -> None:
        """Close the session on the server, which cancels its running calls.

        A second `close` does nothing.
        """
        if self.closed:
            return
        self.state.closed, self._beat = True, None
        self.state.clear()
        await self._steps.close()
        await self._connection.request("DELETE", f"/v1/session/{self.id}")
