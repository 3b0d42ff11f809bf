"""The face of the runtime: the one object through which routes, metrics and commands use it."""

from __future__ import annotations

from weftline.contract.errors import StorageFull, UnknownSession
from weftline.contract.protocol import SetVariable, SubmitBody
from weftline_server.graph.primitive import Task
from weftline_server.journal.journal import Key
from weftline_server.runtime.driver import Driver
from weftline_server.runtime.engine_view import EngineStatus, EngineView, ServedModel, Status
from weftline_server.runtime.lifecycle import Draining, Lifecycle, SessionHolds
from weftline_server.runtime.other_servers import Membership, SessionHandover
from weftline_server.runtime.registry import NotHere
from weftline_server.session.session import ServerSession

__all__ = [
    "Draining",
    "EngineStatus",
    "NotHere",
    "ServedModel",
    "Service",
    "SessionHolds",
    "Status",
]


class Service:
    """Opens the sessions of clients, adds to them and ends what they run.

    What one part does alone is that part's own method: `registry` finds sessions, `readers` wait
    for values, `engines` know models and tools, `lifecycle` starts and ends the server.
    """

    def __init__(
        self,
        driver: Driver,
        member: Membership | None = None,
        departure: SessionHandover | None = None,
    ) -> None:
        self._driver = driver
        self.registry = driver.registry
        self.readers = driver.readers
        self.lifecycle = Lifecycle(driver, member, departure)
        self.engines = EngineView(driver.registry, driver.dispatcher, self.lifecycle)

    def open(self, tenant: str, *, stays: bool = True, alias: str | None = None) -> ServerSession:
        """Open a session of `tenant`. Raises Overloaded at the tenant's limit of sessions.

        `stays` says that more calls may be added later. With an `alias`, which may be "", the
        session is kept on disk, if this server keeps any. Raises Draining.
        """
        if self.lifecycle.draining:
            raise Draining()
        return self._driver.open(tenant, stays=stays, alias=alias)

    @property
    def store_failure(self) -> str:
        """Why the store of sessions cannot be used now; "" if it can, or if there is none."""
        member, journal = self.lifecycle.member, self.registry.journal
        if member is not None and member.is_away:
            return "the database does not answer"
        return "" if journal is None else journal.failure

    async def submit(
        self,
        session: ServerSession,
        submit: SubmitBody,
        key: Key | None = None,
        *,
        whole: bool = False,
        restored: int = 0,
    ) -> tuple[Task, ...]:
        """Add all calls of `submit` to the session, or raise and change nothing. With `whole` the
        client streams none of their outputs. Thoughts were `restored` in so many turns of their
        prompts.

        On a server that keeps sessions on disk they are there at the return. Where the disk is full
        only now, the calls that were added are cancelled.
        """
        journal = self.registry.journal
        if journal is None:
            return await self._driver.submit(session, submit, whole=whole, restored=restored)
        if submit.calls or submit.steps:
            journal.admit(session)
        try:
            tasks = await self._driver.submit(session, submit, key, whole=whole, restored=restored)
        except UnknownSession as error:
            if journal.has_lost(session):  # it has moved meanwhile
                raise NotHere(session.tenant, session.id) from error
            raise
        try:
            await journal.kept(session, may_have_moved=True)
        except StorageFull:
            for task in tasks:
                self._driver.cancel(session, task.id)
            raise
        return tasks

    def set(self, session: ServerSession, variable: str, given: SetVariable) -> None:
        """Give an empty variable its value, or fail it with the client's error. Raises AlreadySet.

        A step that a client computes may fail before its inputs are ready.
        """
        self._driver.set(session, variable, given)

    def cancel(self, session: ServerSession, task: str) -> None:
        """Cancel the call and its descendants. Raises UnknownCall."""
        self._driver.cancel(session, task)

    def cancel_variable(self, session: ServerSession, variable: str) -> None:
        """Cancel the call that makes the variable, and its descendants. Raises UnknownVariable."""
        self._driver.cancel_variable(session, variable)

    def close(self, session: ServerSession) -> None:
        """Cancel what the session still runs, and forget it. None of its calls starts any more."""
        self._driver.close(session)

    def earlier(self, key: Key | None) -> tuple[ServerSession, tuple[Task, ...]] | None:
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
