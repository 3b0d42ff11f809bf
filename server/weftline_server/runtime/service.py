"""The face of the runtime: the one object through which routes, metrics and commands use it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from weftline.contract.errors import StorageFull, WeftlineError
from weftline.contract.protocol import Criterion, SetVariable, Submit
from weftline_engine import api
from weftline_server.graph.primitive import Task
from weftline_server.journal.journal import Key
from weftline_server.lowering.step import Tools
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.prompt.render import PromptBefore
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.runtime.driver import Driver, TaskObserver, resume
from weftline_server.runtime.readers import Chunk
from weftline_server.schedule.engines.activity import EngineActivity
from weftline_server.schedule.engines.member import EngineState, Member
from weftline_server.session.session import Session
from weftline_server.session.variable import Variable

log = logging.getLogger("weftline.service")

SWEEP_S = 30.0  # seconds between two searches for expired sessions
POLL_S = 0.02  # between two checks during a drain whether calls still run


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients can name. `context_limit` counts tokens of prompt and output."""

    name: str
    context_limit: int
    tool_format: ToolFormat
    prompter: Prompter

    def payload(self, prompt: PromptBefore) -> Payload:
        """`prompt` as an engine would get it. Any thread may ask."""
        return self.prompter.payload(prompt)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine at this moment; `model` is None until the engine has described itself.

    `node` is the machine of an engine elsewhere, "" for this one. `lacks` names capabilities that
    the engine does not have. `tokens` bounds what its `running` primitives hold, prompt and output.
    """

    name: str
    state: EngineState
    model: str | None
    node: str
    lacks: tuple[str, ...]
    last_error: str
    running: int
    tokens: int
    kv_tokens: int | None  # the size of its KV cache; None where the engine does not say
    kept: int  # tokens in it that are kept for calls to come; of `Service.status` only
    kv_bytes: int | None  # of its KV cache; None where the engine does not say
    kv_costs: api.KvCosts | None  # measured at its start, if they were
    metrics: api.HasMetrics | None  # None: the engine has none of its own, or is down

    @staticmethod
    def of(member: Member, kept: int = 0) -> EngineStatus:
        """The status of the engine in `member`."""
        description = member.description
        engine = None if member.state is EngineState.DOWN else member.engine
        return EngineStatus(
            name=member.name,
            state=member.state,
            model=None if description is None else description.model,
            node=member.node,
            lacks=() if description is None else description.lacking,
            last_error=member.last_error,
            running=len(member.ops.works),
            tokens=sum(work.tokens for work in member.ops.works.values()),
            kv_tokens=None if description is None else description.kv_tokens,
            kept=kept,
            kv_bytes=_kv_bytes(description),
            kv_costs=None if description is None else description.kv_costs,
            metrics=engine if isinstance(engine, api.HasMetrics) else None,
        )


def _kv_bytes(description: api.Description | None) -> int | None:
    if description is None or None in (description.kv_tokens, description.kv_bytes_per_token):
        return None
    return (description.kv_tokens or 0) * (description.kv_bytes_per_token or 0)


@dataclass(frozen=True, slots=True)
class Status:
    """The server at this moment.

    `healthy` means that every served model has an engine that takes work. `sessions` counts open
    sessions, `queued` the primitives that wait for an engine,
    `admitted` the applications in the KV caches and `waiting` those that wait for that.
    """

    draining: bool
    healthy: bool
    sessions: int
    queued: int
    admitted: int
    waiting: int
    engines: tuple[EngineStatus, ...]


class Service:
    """Serves sessions on engines. Every method delegates to the part that does the work."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.tools: Callable[[], Tools] = lambda: driver.dispatcher.tools
        self.registry = driver.registry
        self.readers = driver.readers
        self._sweeper: asyncio.Task[None] | None = None
        self.draining = False  # no new work is taken
        self.start_error: Exception | None = None

    async def start(self) -> None:
        """Start every engine. Raises EngineDied or WeftlineError, and keeps it in `start_error`."""
        try:
            await self._driver.dispatcher.start(self._driver)
        except (api.EngineDied, WeftlineError) as error:
            self.start_error = error
            await self._driver.dispatcher.close()
            if self.registry.journal is not None:
                await self.registry.journal.close()
            raise
        if self.registry.journal is not None:
            self.registry.journal.start()
            resume(self._driver, self.registry.journal)
        self._sweeper = asyncio.create_task(_sweep_forever(self._driver))

    async def drain(self, within_s: float) -> None:
        """Take no new work, let calls end within `within_s` seconds, then close every session."""
        self.draining = True
        try:
            async with asyncio.timeout(within_s):
                while self._driver.registry.busy():  # noqa: ASYNC110 - a call's end sets no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            log.warning("calls still ran after %g s and are cancelled", within_s)
        await self._driver.shut_down()

    async def shut_down(self) -> None:
        """Close every session at once, then stop the engines."""
        self.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._driver.shut_down()
        await self._driver.dispatcher.close()

    async def join(self, name: str, engine: api.Engine, description: api.Description) -> None:
        """Add an engine that runs elsewhere. Raises InvalidRequest if it does not fit."""
        await self._driver.dispatcher.join(name, engine, description)

    def observe(self, *observers: TaskObserver) -> None:
        """Tell `observers` about every task and session that ends from now on."""
        self._driver.observers += observers

    def open(self, tenant: str, *, stays: bool = True, alias: str | None = None) -> Session:
        """Open a session of `tenant`. Raises Overloaded at the tenant's limit of sessions.

        `stays` says that more calls may be added later. With an `alias`, which may be "", the
        session is kept on disk, if this server keeps any.
        """
        return self._driver.open(tenant, stays=stays, alias=alias)

    def find(self, tenant: str, id: str) -> Session:
        """The tenant's session `id`. Raises UnknownSession or ServerRestarted."""
        return self._driver.registry.find(tenant, id)

    def close(self, session: Session) -> None:
        """Cancel what the session still runs, and forget it."""
        self._driver.close(session)

    async def submit(
        self,
        session: Session,
        submit: Submit,
        key: Key | None = None,
        *,
        whole: bool = False,
        shaped: Callable[[Task], Task] | None = None,
    ) -> tuple[Task, ...]:
        """Add all calls of `submit` to the session, or raise and change nothing. With `whole` the
        client streams none of their outputs. Their tasks are `shaped` by this function.

        On a server that keeps sessions on disk they are there at the return. Where the disk is full
        only now, the calls that were added are cancelled.
        """
        journal = self.registry.journal
        if journal is None:
            return await self._driver.submit(session, submit, whole=whole, shaped=shaped)
        if submit.calls or submit.steps:
            journal.admit()
        tasks = await self._driver.submit(session, submit, key, whole=whole, shaped=shaped)
        try:
            await journal.kept(session)
        except StorageFull:
            for task in tasks:
                self._driver.cancel(session, task.id)
            raise
        return tasks

    def set(self, session: Session, variable: str, given: SetVariable) -> None:
        """Give an empty variable its value or its error. Raises AlreadySet."""
        self._driver.set(session, variable, given)

    def cancel(self, session: Session, call: str) -> None:
        """Cancel the call and all calls below it. Raises UnknownCall."""
        self._driver.cancel(session, call)

    def cancel_variable(self, session: Session, variable: str) -> None:
        """Cancel the call that produces the variable. Raises UnknownVariable."""
        self._driver.cancel_variable(session, variable)

    def read(self, session: Session, variable: str) -> Variable:
        """The variable in its present state. Raises UnknownVariable."""
        return self._driver.readers.read(session, variable)

    async def get(
        self,
        session: Session,
        variable: str,
        *,
        criteria: Criterion | None = None,
        timeout_s: float | None = None,
        wait: bool = False,
    ) -> Variable:
        """The variable once it is ready. Raises its error, Timeout, UnknownVariable or NoProducer.

        `wait` also waits for a variable without a producer so far.
        """
        return await self._driver.readers.get(
            session, variable, criteria=criteria, timeout_s=timeout_s, wait=wait
        )

    def stream(
        self,
        session: Session,
        variable: str,
        *,
        offset: int = 0,
        criteria: Criterion | None = None,
        wait: bool = False,
        grace_s: float = 0.0,
    ) -> AsyncIterator[Chunk]:
        """The variable's text from character `offset` on, as it is generated. Raises as `get` does.

        A reader that leaves still counts for `grace_s` seconds, in which it can come back.
        """
        return self._driver.readers.stream(
            session, variable, offset=offset, criteria=criteria, wait=wait, grace_s=grace_s
        )

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """The served models, the default one first."""
        return tuple(self.model(name) for name in self._driver.dispatcher.models)

    def model(self, name: str | None) -> ServedModel:
        """The served model that a client's `name` means. Raises UnknownModel, EngineUnavailable."""
        dispatcher = self._driver.dispatcher
        found = dispatcher.model(name)
        prompter = dispatcher.prompter(found)
        return ServedModel(
            found, prompter.description.context_limit, prompter.tool_format, prompter
        )

    @property
    def engines(self) -> tuple[EngineStatus, ...]:
        """The status of every engine, the configured ones first."""
        return tuple(EngineStatus.of(member) for member in self._driver.dispatcher.members)

    def status(self) -> Status:
        """The server's status, for health checks, metrics and the cluster."""
        dispatcher = self._driver.dispatcher
        memory = dispatcher.occupancy()
        return Status(
            draining=self.draining,
            healthy=dispatcher.healthy,
            sessions=len(self._driver.registry),
            queued=dispatcher.queued,
            admitted=memory.admitted,
            waiting=memory.waiting,
            engines=tuple(
                EngineStatus.of(member, memory.kept.get(member.name, 0))
                for member in dispatcher.members
            ),
        )


def engine_loads(service: Service, tenant: str | None) -> list[EngineActivity]:
    """What each engine does now. Of a `tenant`, only its own calls are counted."""
    driver = service._driver
    salt = None if tenant is None else driver.registry.salt(tenant)
    dispatcher = driver.dispatcher
    kept = dispatcher.occupancy().kept if salt is None else {}
    return [
        EngineActivity.of(one, salt, dispatcher.queued_of, kept.get(one.name, 0))
        for one in dispatcher.members
    ]


async def step_is_due(service: Service, session: Session, variable: str) -> bool:
    """Wait until a client's step may be computed; False if it has ended instead."""
    return await service._driver.readers.due(session, variable)


def earlier_submit(service: Service, key: Key | None) -> tuple[Session, tuple[Task, ...]] | None:
    """What a submit with this key has added in an earlier run of the server, if any.

    Raises KeyReused, and UnknownSession where its session is gone.
    """
    journal = service.registry.journal
    found = None if journal is None or key is None else journal.earlier(key)
    if key is None or found is None:
        return None
    session = service.registry.look(key.tenant, found.session)
    return session, tuple(session.tasks[id].task for id in found.tasks)


async def _sweep_forever(driver: Driver) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            driver.sweep()
        except Exception:  # without this task no session would ever expire again
            log.exception("the expired sessions could not be closed")
