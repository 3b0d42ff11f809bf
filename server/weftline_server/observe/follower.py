"""What has changed in a session since the last look, so that a page can follow it while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from weftline_server.observe.client_tools import client_tools, tool_view
from weftline_server.observe.critical import critical_view
from weftline_server.observe.edges import Links, links_of
from weftline_server.observe.snapshot import calling_answers
from weftline_server.observe.view import task_view
from weftline_server.session.session import ServerSession
from weftline_server.session.task import TaskRun

# Tasks in one message: their JSON takes some milliseconds of the event loop.
MOST = 200

# A task looks as before while this is equal: its state, and each step's progress.
_Look = tuple[object, ...]


class Follower:
    """One reader of a session. A task is looked at until it has ended and its end was told."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session
        self._live: dict[str, tuple[TaskRun, _Look | None]] = {}
        self._known = 0  # tasks
        self._links = Links()
        self._tools: list[dict[str, Any]] = []  # as they were told last
        self.is_over = False  # the session was closed, and its end was told

    def changes(self) -> Iterator[dict[str, Any]]:
        """Messages with the tasks that look different, at most MOST in each; then the edges if
        there are new tasks, the critical path if anything has changed, and the session's end.
        """
        session, grown = self._session, False
        if len(session.tasks) > self._known:
            for id, run in islice(session.tasks.items(), self._known, None):
                self._live[id] = (run, None)
            self._known, grown = len(session.tasks), True
        moved = [run for run, told in list(self._live.values()) if _look(run) != told]
        for at in range(0, len(moved), MOST):
            runs = moved[at : at + MOST]
            yield {"tasks": [task_view(session, run) for run in runs]}
            self._note(runs)
        if grown:
            self._links = links_of(session)
            yield {"edges": list(self._links.views())}
        yield from self._told_tools(moved)
        if moved:
            yield {"critical": critical_view(session, self._links)}
        if session.ended is not None and not self.is_over:
            self.is_over = True
            yield {"ended_s": session.ended - session.opened}

    def _told_tools(self, moved: list[TaskRun]) -> Iterator[dict[str, Any]]:
        """The client's tools, where an answer of a task that has moved calls some, or a new task
        has their results.
        """
        session = self._session
        if moved and calling_answers(session):
            self._links.tools = client_tools(session)
        views = [tool_view(session, tool) for tool in self._links.tools]
        if views != self._tools:
            self._tools = views
            yield {"tools": views}

    def _note(self, runs: list[TaskRun]) -> None:
        for run in runs:
            if run.live:
                self._live[run.task.id] = (run, _look(run))
            else:
                del self._live[run.task.id]


def _look(run: TaskRun) -> _Look:
    last = run.steps[-1] if run.steps else None
    return (run.state, len(run.steps), None if last is None else last.sent, run.current.filling)
