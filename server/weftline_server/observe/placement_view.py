"""Why a call ran on its engine: the terms of the scores of the engines that were considered."""

from __future__ import annotations

from typing import Any

from weftline_server.session.task import TaskRun


def placement_view(run: TaskRun, whole: bool) -> list[dict[str, Any]]:
    """The engines that were considered for the task's last output: the chosen one first.

    All numbers are tokens; the least score among engines with room wins. An engine's load is made
    by all tenants, so it is left out unless the reader may see the `whole` server.
    """
    rows: list[dict[str, Any]] = []
    for one in run.steps[-1].why if run.steps else ():
        row = {
            "engine": one.engine,
            "room": one.room,
            "missing_tokens": one.missing,
            "prefix": one.prefix,
            "group": one.group,
        }
        if whole:
            row.update(load=one.load, gather=one.gather, score=one.score)
        rows.append(row)
    return rows
