"""What has changed in a session since the last look, so that a page can follow it while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from weftline_server.observe.client_tools import client_tools, tool_view
from weftline_server.observe.cost import Prices
from weftline_server.observe.critical import critical_view
from weftline_server.observe.edges import Links, links_of
from weftline_server.observe.glance import answered, asked, written
from weftline_server.observe.listing import row
from weftline_server.observe.snapshot import calling_answers
from weftline_server.observe.view import task_view
from weftline_server.session.session import ServerSession
from weftline_server.session.task import TaskRun

# Tasks in one message: their JSON takes some milliseconds of the event loop.
MOST = 200
LOOKED = 1000  # tasks that are asked whether they write, in 1 ms

# A task looks as before while this is equal: its state, and each step's progress.
_Look = tuple[object, ...]


class Follower:
    """One reader of a session. A task is looked at until it has ended and its end was told."""

    def __init__(self, session: ServerSession, prices: Prices | None = None) -> None:
        self._session = session
        self._prices = prices or Prices({})
        self._live: dict[str, tuple[TaskRun, _Look | None]] = {}
        self._known = 0  # tasks
        self._links = Links()
        self._tools: list[dict[str, Any]] = []  # as they were told last
        self._glance: dict[str, Any] = {}
        self._written: dict[str, str] = {}
        self.is_over = False  # the session was closed, and its end was told

    def changes(self, now: float, wall: float = 0.0) -> Iterator[dict[str, Any]]:
        """Messages with the tasks that look different, at most MOST in each; then the edges if
        there are new tasks, the client's tools, the critical path and the session at a glance as
        far as they have changed, the texts that are being written, and the session's end.

        `now` is the second of the sessions' clock. `wall` is as for `row` of a list.
        """
        session, grown = self._session, False
        if len(session.tasks) > self._known:
            for id, run in islice(session.tasks.items(), self._known, None):
                self._live[id] = (run, None)
            self._known, grown = len(session.tasks), True
        moved = [run for run, told in list(self._live.values()) if _look(run) != told]
        for at in range(0, len(moved), MOST):
            runs = moved[at : at + MOST]
            views = [self._view(run) for run in runs]
            self._note(runs)  # at once: the session goes on while the message is sent
            yield {"tasks": views, "now_s": now - session.opened}
        if grown:
            self._links = links_of(session)
            yield {"edges": list(self._links.views())}
        yield from self._told_tools(moved)
        if moved:
            yield {"critical": critical_view(session, self._links)}
        is_end = session.ended is not None and not self.is_over
        if moved or is_end or not self._glance:
            yield from self._told_glance(now, wall)
        yield from self._told_texts()
        if is_end and session.ended is not None:
            self.is_over = True
            yield {"ended_s": session.ended - session.opened}

    def _view(self, run: TaskRun) -> dict[str, Any]:
        view = task_view(self._session, run)
        return {**view, **self._prices.shown(self._prices.of_task(run))}

    def _told_glance(self, now: float, wall: float) -> Iterator[dict[str, Any]]:
        """The session's row of the list, with its input and its output."""
        session = self._session
        task, text = answered(session, self._links)
        glance = {
            **row(session, now, wall),
            **self._prices.shown(self._prices.of_session(session)),
            "input": asked(session),
            "output": text,
            "output_task": task,
        }
        if {**glance, "age_s": 0} != {**self._glance, "age_s": 0}:
            self._glance = glance
            yield {"glance": glance, "now_s": now - session.opened}

    def _told_texts(self) -> Iterator[dict[str, Any]]:
        """The ends of texts that have grown since they were told."""
        texts = written(self._session, (run for run, _ in islice(self._live.values(), LOOKED)))
        told, self._written = self._written, texts
        grown = {id: text for id, text in texts.items() if told.get(id) != text}
        if grown:
            yield {"texts": grown}

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
