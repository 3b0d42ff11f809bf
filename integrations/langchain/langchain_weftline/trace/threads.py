"""The sessions of a LangGraph graph's threads, which stay open between the runs of a thread."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from threading import RLock
from typing import Any
from uuid import UUID

from langchain_weftline.trace.handlers import OwnHandler
from langchain_weftline.trace.prompt_origins import LISTENER
from langchain_weftline.trace.session_trace import TracedSession
from weftline.kit import RunSessions

# The most threads that are kept. Each has up to 1,024 answers. One that is dropped gets a new
# session at its next run.
MAX_THREADS = 1024


class ThreadSessions(RunSessions[TracedSession]):
    """The sessions of one thread. They stay open when a run of the thread ends."""

    def finish(self) -> None:
        """Do nothing, because the thread may have further runs."""

    def close(self) -> None:
        """Note that the thread is over."""
        super().finish()


class Threads(OwnHandler):
    """Gives each run of a graph the sessions of its thread. It is a callback handler of the run.

    A run without a `thread_id`, and a graph inside another run, keep the sessions of their run.
    """

    ignore_chain = False
    run_inline = True

    def __init__(self) -> None:
        self._by_thread: OrderedDict[str, ThreadSessions] = OrderedDict()
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()
        weakref.finalize(self, _close, self._by_thread)

    def on_chain_start(
        self,
        serialized: object,
        inputs: object,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Note the thread of a run that no other run contains."""
        thread = (metadata or {}).get("thread_id")
        if parent_run_id is None and thread is not None:
            LISTENER.expect(run_id, self._find(str(thread)))

    def _find(self, thread: str) -> ThreadSessions:
        dropped = None
        with self._lock:
            found = self._by_thread.get(thread)
            if found is None:
                found = self._by_thread[thread] = ThreadSessions()
            self._by_thread.move_to_end(thread)
            if len(self._by_thread) > MAX_THREADS:
                _, dropped = self._by_thread.popitem(last=False)
        if dropped is not None:
            dropped.close()
        return found


def _close(threads: OrderedDict[str, ThreadSessions]) -> None:
    for sessions in threads.values():
        sessions.close()
