"""The face of the runtime: the one object through which routes, metrics and commands use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from weftline.contract.errors import StorageFull
from weftline.contract.protocol import Criterion, SetVariable, Submit
from weftline_server.graph.primitive import Task
from weftline_server.journal.journal import Key
from weftline_server.lowering.step import Tools
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.engine_view import EngineStatus, EngineView, ServedModel, Status
from weftline_server.runtime.lifecycle import Lifecycle
from weftline_server.runtime.readers import TextChunk
from weftline_server.session.session import Session
from weftline_server.session.variable import Variable

__all__ = ["EngineStatus", "ServedModel", "Service", "Status"]


class Service:
    """Serves the sessions of clients. Every method delegates to the part that does the work."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.tools: Callable[[], Tools] = lambda: driver.dispatcher.catalogue.tools
        self.registry = driver.registry
        self.readers = driver.readers
        self.lifecycle = Lifecycle(driver)
        self.engines = EngineView(driver.registry, driver.dispatcher, self.lifecycle)

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
    ) -> AsyncIterator[TextChunk]:
        """The variable's text from character `offset` on, as it is generated. Raises as `get` does.

        A reader that leaves still counts for `grace_s` seconds, in which it can come back.
        """
        return self._driver.readers.stream(
            session, variable, offset=offset, criteria=criteria, wait=wait, grace_s=grace_s
        )

    def model(self, name: str | None) -> ServedModel:
        """The served model that a client's `name` means. Raises UnknownModel, EngineUnavailable."""
        return self.engines.model(name)

    def earlier(self, key: Key | None) -> tuple[Session, tuple[Task, ...]] | None:
        """The session and the tasks of a submit with this key in an earlier run of the server, if
        any.

        Raises KeyReused, and UnknownSession where its session is gone.
        """
        journal = self.registry.journal
        found = None if journal is None or key is None else journal.earlier(key)
        if key is None or found is None:
            return None
        session = self.registry.look(key.tenant, found.session)
        return session, tuple(session.tasks[id].task for id in found.tasks)
