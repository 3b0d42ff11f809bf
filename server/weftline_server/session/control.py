"""How a session's graph grows: what follows when a step that decides has ended.

The body of such a step says what the graph gets. This module adds it, all or nothing, and ends what
a decision has made needless. Nothing here knows a kind of step.
"""

from __future__ import annotations

from dataclasses import replace

from weftline.contract.errors import AlreadySet, WeftlineError
from weftline_server.graph.growth import Growing, Growth, TakesItems
from weftline_server.session import events as ev
from weftline_server.session.budget import Spent
from weftline_server.session.draft import Draft
from weftline_server.session.execution import Execution
from weftline_server.session.readiness import lost_read
from weftline_server.session.task import PrimitiveRun
from weftline_server.session.variable import SessionVariable, settled_of


def finish(
    execution: Execution, spent: Spent, event: ev.PrimitiveFinished, opened: float
) -> list[ev.Action]:
    """End a primitive. First add the tasks that its body derives from its value."""
    run = execution.primitives.get(event.primitive)
    if run is None or not run.live or event.error is not None:
        return execution.finished(event)
    body = execution.graph.primitives[run.id].body
    if not isinstance(body, Growing):
        return execution.finished(event)
    try:
        growth = body.growth(execution.graph, event.value)
        actions = _grow(execution, spent, run, growth, event.now - opened)
    except WeftlineError as error:
        return execution.finished(replace(event, value=None, error=error))
    actions += execution.finished(event)
    reads = (read.variable for one in growth.rewritten.values() for read in one.reads)
    execution.held.look_above(execution.graph, execution.primitives, reads)
    for id in growth.rewritten:
        rewired = execution.primitives[id]
        error = lost_read(execution.graph.primitives[id], execution.variables)
        if rewired.live and error is not None:
            actions += execution.fail(rewired.task, error)
        else:
            execution.advance(rewired, event.now, actions)
    if growth.released:
        actions += execution.skip(growth.released)
    actions += [ev.Cut(id) for id in growth.cut]
    return actions


def fail(
    execution: Execution, spent: Spent, event: ev.PrimitiveFailed, opened: float
) -> list[ev.Action]:
    """End a primitive that has failed. If its body names a replacement, add the replacement
    first."""
    run = execution.primitives.get(event.primitive)
    if run is None or not run.live:
        return []
    body = execution.graph.primitives[run.id].body
    actions: list[ev.Action] = []
    if isinstance(body, Growing):
        growth = body.failure(execution.graph, event.error, event.is_taken)
        try:
            actions = _grow(execution, spent, run, growth, event.now - opened)
        except WeftlineError as error:
            return execution.fail(run.task, error)
        actions += execution.skip(growth.released)
    return actions + execution.fail(run.task, event.error)


def take_items(
    execution: Execution, spent: Spent, event: ev.ItemsCame, opened: float
) -> list[ev.Action]:
    """Add the tasks that a step needs for some items of a list."""
    run = execution.primitives.get(event.primitive)
    if run is None or not run.live:
        return []
    body = execution.graph.primitives[run.id].body
    assert isinstance(body, TakesItems), f"{run.id} takes no items"
    try:
        growth = body.growth_of(execution.graph, event.offset, event.items)
        actions = _grow(execution, spent, run, growth, event.now - opened)
    except WeftlineError as error:
        return execution.fail(run.task, error)
    return actions + execution.skip(growth.released)


def _grow(
    execution: Execution, spent: Spent, run: PrimitiveRun, growth: Growth, age_s: float
) -> list[ev.Action]:
    """Add all of `growth`, or raise AlreadySet, DuplicateProducer or BudgetExceeded."""
    variables = execution.variables
    draft = Draft.of(growth.tasks, run.task.detached, run.task.origin)
    execution.graph.check(draft.added, settled_of(variables, draft.variables))
    for id in growth.values:
        if id in variables:
            raise AlreadySet(f"variable {id!r} is a name of the server: use another", param=id)
    spent.take_tasks(growth.tasks, age_s)
    execution.graph.rewrite(growth.rewritten)
    for id, value in growth.values.items():
        spent.add_value(value)
        variables[id] = SessionVariable(id)
        variables[id].set(value)
    return execution.add(draft, execution.now)
