"""The body of a step that repeats: its calls and steps, made into tasks for one item or round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from weftline.errors import InvalidRequest
from weftline.protocol import Call, InOut
from weftline.steps import (
    MAX_NAME,
    Body,
    Branch,
    Each,
    Embed,
    FunctionStep,
    Loop,
    Mean,
    Rerank,
    Source,
    Step,
    Text,
)
from weftline_server.graph.addition import Addition
from weftline_server.graph.primitive import Task
from weftline_server.lowering.call import lower_call
from weftline_server.lowering.control.sides import gated, given, read_by_sides

Rename = Callable[[str], str]
LowerStep = Callable[[Step, str, str], Task]  # a step, what runs it, the id of its task


def resolved(body: Body, prepare: Callable[[Call], Call], resource: Callable[[Step], str]) -> Body:
    """The body with the models of its calls and the engines of its steps named.

    Raises UnknownModel, UnknownStore.
    """

    def step_of(step: Step) -> Step:
        if isinstance(step, Each | Loop):
            return replace(step, body=resolved(step.body, prepare, resource))
        found = resource(step)
        return replace(step, engine=found) if isinstance(step, Embed | Rerank) else step

    return Body(
        calls=tuple(prepare(call) for call in body.calls), steps=tuple(map(step_of, body.steps))
    )


def resource_of(step: Step) -> str:
    """What runs a step of a resolved body; "" for the server itself."""
    if isinstance(step, FunctionStep):
        return step.function
    return getattr(step, "store", None) or getattr(step, "engine", None) or ""


def is_free(body: Body) -> bool:
    """Whether it can run for nothing: it changes nothing outside the graph."""
    return not any(
        step.kind in ("ingest", "delete")
        or (isinstance(step, FunctionStep) and step.effects != "none")
        or (isinstance(step, Each | Loop) and not is_free(step.body))
        for step in body.steps
    )


def has_calls(body: Body) -> bool:
    """Whether it or a body in it has a call."""
    inner = (step.body for step in body.steps if isinstance(step, Each | Loop))
    return bool(body.calls) or any(map(has_calls, inner))


def size_of(body: Body) -> int:
    """The calls and steps of one instance. Those of a body inside it count once."""
    inner = (size_of(step.body) for step in body.steps if isinstance(step, Each | Loop))
    return len(body.calls) + len(body.steps) + sum(inner)


def written(body: Body) -> frozenset[str]:
    """The variables that the body names as outputs."""
    found = {
        holder.semantic_var_id
        for call in body.calls
        for holder in call.placeholders
        if holder.in_out is InOut.OUT and holder.semantic_var_id is not None
    }
    for step in body.steps:
        found.update(_outs(step))
    return frozenset(found)


def read_outside(body: Body, own: frozenset[str]) -> tuple[str, ...]:
    """The variables that the body reads and that neither it nor `own` gives."""
    inside = written(body) | own
    found: dict[str, None] = {}
    for call in body.calls:
        holders = (one for one in call.placeholders if one.in_out is InOut.IN)
        found.update(dict.fromkeys(one.semantic_var_id for one in holders if one.semantic_var_id))
    for step in body.steps:
        found.update(dict.fromkeys(_reads(step)))
    return tuple(var for var in found if var not in inside)


@dataclass(frozen=True, slots=True)
class Instance:
    """One item or round: the prefix of its ids, its owner, and names that differ from theirs.

    `label` stands before the names of its tasks, so that an error says which item failed.
    """

    id: str
    owner: str
    label: str
    names: Mapping[str, str]


def instance(body: Body, made: Instance, lower: LowerStep) -> tuple[Task, ...]:
    """The tasks of one item or round. Variables of the body get the prefix, others keep their name.

    Raises the errors of lowering.
    """
    own = written(body)

    def rename(variable: str) -> str:
        if variable in made.names:
            return made.names[variable]
        return f"{made.id}.{variable}" if variable in own else variable

    def tasks() -> Iterator[Task]:
        for number, call in enumerate(body.calls):
            id = f"{made.id}.c{number}"
            task = lower_call(_renamed_call(call, rename), call.model or "", id)
            yield replace(task, name=f"{made.label}.{task.name}")
        for number, step in enumerate(body.steps):
            name = f"{made.label}.{step.name or step.kind}"[-MAX_NAME:]
            named = replace(renamed(step, rename), name=name)
            yield lower(named, resource_of(step), f"{made.id}.s{number}")

    return tuple(replace(task, owner=made.owner) for task in gated(list(tasks())))


@dataclass(frozen=True, slots=True)
class Tried:
    """What an instance of a body will be like.

    `watched` are the variables that tell that all of it has ended, by their names in the body:
    those that the step asks for, and those that no task of it reads. Only sides of branches may
    read `sides`, which are variables around it. `work` is estimated, in tokens.
    """

    watched: tuple[str, ...]
    sides: frozenset[str]
    work: int


def tried(body: Body, made: Instance, lower: LowerStep, asked: Iterable[str]) -> Tried:
    """Make an instance, of which the step asks for the variables `asked`.

    Raises what can be refused: the errors of lowering and of a graph.
    """
    tasks = instance(body, made, lower)
    Addition.of(tasks)
    read = {variable for task in tasks for variable in task.reads}
    start = len(made.id) + 1
    unread = (var[start:] for task in tasks for var in given(task) if var not in read)
    watched = tuple(dict.fromkeys((*asked, *unread)))
    sides = read_by_sides(tasks, [f"{made.id}.{variable}" for variable in watched])
    own = {variable for task in tasks for variable in task.writes}
    work = sum(one.work for task in tasks for one in task.primitives)
    return Tried(watched, sides - own, work)


def check_writes(
    body: Body, name: str, wanted: Iterable[str], param: str, given: Collection[str]
) -> None:
    """Raise InvalidRequest unless the body writes what is wanted, and not what it is given."""
    inside = written(body)
    for variable in wanted:
        if variable not in inside:
            raise InvalidRequest(
                f"the body of {name!r} does not write {variable!r}: name a variable that it writes",
                param=param,
            )
    for variable in given:
        if variable in inside:
            raise InvalidRequest(
                f"the body of {name!r} writes {variable!r}, which it is given: rename one",
                param=variable,
            )


def renamed(step: Step, rename: Rename) -> Step:
    """The step with other names of its variables."""
    changes: dict[str, Any] = {
        field.name: _renamed_source(value, rename)
        for field in fields(step)
        if isinstance(value := getattr(step, field.name), Source)
    }
    changes["after"] = tuple(map(rename, step.after))
    if step.out is not None:
        changes["out"] = rename(step.out)
    match step:
        case FunctionStep():
            arguments = step.args.items()
            changes["args"] = {name: _renamed_source(one, rename) for name, one in arguments}
        case Text() | Mean():
            changes["parts"] = tuple(_renamed_source(one, rename) for one in step.parts)
        case Branch():
            changes["cases"] = tuple(replace(one, take=rename(one.take)) for one in step.cases)
            changes["default"] = rename(step.default)
        case Each():
            changes["collect"] = {name: rename(out) for name, out in step.collect.items()}
            changes["body"] = _renamed_body(step.body, frozenset({step.item}), rename)
        case Loop():
            changes["carry"] = {name: rename(first) for name, first in step.carry.items()}
            changes["body"] = _renamed_body(step.body, frozenset(step.carry), rename)
    return replace(step, **changes)


def _renamed_body(body: Body, own: frozenset[str], rename: Rename) -> Body:
    """The body with other names of the variables that it reads from outside."""
    inside = written(body) | own

    def outside(variable: str) -> str:
        return variable if variable in inside else rename(variable)

    return Body(
        calls=tuple(_renamed_call(call, outside) for call in body.calls),
        steps=tuple(renamed(step, outside) for step in body.steps),
    )


def _renamed_call(call: Call, rename: Rename) -> Call:
    holders = (
        one
        if one.semantic_var_id is None
        else replace(one, semantic_var_id=rename(one.semantic_var_id))
        for one in call.placeholders
    )
    return replace(call, placeholders=tuple(holders))


def _renamed_source(source: Source, rename: Rename) -> Source:
    return source if source.var is None else replace(source, var=rename(source.var))


def _outs(step: Step) -> tuple[str, ...]:
    if isinstance(step, Each):
        return tuple(step.collect.values())
    return () if step.out is None else (step.out,)


def _reads(step: Step) -> tuple[str, ...]:
    """All variables that the step, and the bodies inside it, read from around them."""
    found = (*step.variables, *step.after)
    match step:
        case Branch():
            return (*found, *step.sides)
        case Each():
            return (*found, *read_outside(step.body, frozenset({step.item})))
        case Loop():
            return (*found, *step.carry.values(), *read_outside(step.body, frozenset(step.carry)))
    return found
