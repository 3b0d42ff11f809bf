"""The body of a step that repeats: its calls and steps, made into tasks for one item or round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call, InOut
from weftline.contract.steps import MAX_NAME, Body, StepBase
from weftline_server.graph.addition import Addition
from weftline_server.graph.primitive import Task
from weftline_server.lowering.control.sides import gated, given, read_by_sides
from weftline_server.lowering.step import Kinds, Rename, Resolver, kind_name, repeated_body


def resolved(step: Any, resolver: Resolver, kinds: Kinds) -> Any:
    """A step of a body, or one with a body: what it means by names is known.

    Raises UnknownModel, UnknownStore.
    """
    if (body := repeated_body(step)) is not None:
        calls = tuple(resolver.prepare(call) for call in body.calls)
        steps = tuple(resolved(one, resolver, kinds) for one in body.steps)
        return replace(step, body=Body(calls=calls, steps=steps))
    found = resolver.resource(step)
    made = kinds.of(step).resolved(step, resolver)
    return replace(made, engine=found) if hasattr(made, "engine") else made


def resource_of(step: StepBase) -> str:
    """The engine, model or store that the step names, or "". A resolved step names an engine."""
    said = (getattr(step, name, None) for name in ("function", "store", "engine"))
    return next(filter(None, said), "")


def inside(body: Body) -> Iterator[Body]:
    return filter(None, map(repeated_body, body.steps))


def generates(body: Body, kinds: Kinds) -> bool:
    """Whether a model generates text in it."""
    if body.calls or any(kinds.of(step).traits.generates for step in body.steps):
        return True
    return any(generates(one, kinds) for one in inside(body))


def size_of(body: Body) -> int:
    """The calls and steps of one instance. The calls and steps of a body inside count once."""
    return len(body.calls) + len(body.steps) + sum(map(size_of, inside(body)))


def written(body: Body) -> frozenset[str]:
    """The variables that the body names as outputs."""
    found = {
        holder.semantic_var_id
        for call in body.calls
        for holder in call.placeholders
        if holder.in_out is InOut.OUT and holder.semantic_var_id is not None
    }
    for step in body.steps:
        found.update(step.outputs)
    return frozenset(found)


def read_outside(body: Body, own: frozenset[str], kinds: Kinds) -> tuple[str, ...]:
    """The variables that the body reads and that neither it nor `own` gives."""
    within = written(body) | own
    found: dict[str, None] = {}
    for call in body.calls:
        holders = (one for one in call.placeholders if one.in_out is InOut.IN)
        found.update(dict.fromkeys(one.semantic_var_id for one in holders if one.semantic_var_id))
    for step in body.steps:
        later = kinds.of(step).later(step, kinds)
        found.update(dict.fromkeys((*step.variables, *step.after, *later)))
    return tuple(var for var in found if var not in within)


@dataclass(frozen=True, slots=True)
class Instance:
    """One item or round: the prefix of its ids, its owner, and names that differ from theirs.

    `label` stands before the names of its tasks, so that an error says which item failed.
    """

    id: str
    owner: str
    label: str
    names: Mapping[str, str]


def instance(body: Body, made: Instance, kinds: Kinds) -> tuple[Task, ...]:
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
            task = kinds.lower_call(renamed_call(call, rename), call.model or "", id)
            yield replace(task, name=f"{made.label}.{task.name}")
        for number, step in enumerate(body.steps):
            name = f"{made.label}.{step.name or kind_name(step)}"[-MAX_NAME:]
            named = replace(kinds.of(step).renamed(step, rename, kinds), name=name)
            yield kinds.lower_step(named, resource_of(step), f"{made.id}.s{number}")

    return tuple(replace(task, owner=made.owner) for task in gated(list(tasks())))


@dataclass(frozen=True, slots=True)
class Tried:
    """What an instance of a body will be like.

    Once the `watched` variables are settled, all tasks of the instance have ended. These are the
    variables that the step asks for, and those that no task of the instance reads, by their names
    in the body. `sides` are variables around the body that only sides of branches may read. `work`
    is estimated, in tokens, of which `output` are generated.
    """

    watched: tuple[str, ...]
    sides: frozenset[str]
    work: int
    output: int


def tried(body: Body, made: Instance, kinds: Kinds, asked: Iterable[str]) -> Tried:
    """Make an instance, of which the step asks for the variables `asked`.

    Raises what can be refused: the errors of lowering and of a graph.
    """
    tasks = instance(body, made, kinds)
    Addition.of(tasks)
    read = {variable for task in tasks for variable in task.reads}
    start = len(made.id) + 1
    unread = (var[start:] for task in tasks for var in given(task) if var not in read)
    watched = tuple(dict.fromkeys((*asked, *unread)))
    sides = read_by_sides(tasks, [f"{made.id}.{variable}" for variable in watched])
    own = {variable for task in tasks for variable in task.writes}
    work = sum(one.work for task in tasks for one in task.primitives)
    output = sum(one.output for task in tasks for one in task.primitives)
    return Tried(watched, sides - own, work, output)


def check_writes(
    body: Body, name: str, wanted: Iterable[str], param: str, given: Collection[str]
) -> None:
    """Raise InvalidRequest unless the body writes what is wanted, and not what it is given."""
    own = written(body)
    for variable in wanted:
        if variable not in own:
            raise InvalidRequest(
                f"the body of {name!r} does not write {variable!r}: name a variable that it writes",
                param=param,
            )
    for variable in given:
        if variable in own:
            raise InvalidRequest(
                f"the body of {name!r} writes {variable!r}, which it is given: rename one",
                param=variable,
            )


def renamed_body(body: Body, own: frozenset[str], rename: Rename, kinds: Kinds) -> Body:
    """The body with other names of the variables that it reads from outside."""
    within = written(body) | own

    def outside(variable: str) -> str:
        return variable if variable in within else rename(variable)

    return Body(
        calls=tuple(renamed_call(call, outside) for call in body.calls),
        steps=tuple(kinds.of(step).renamed(step, outside, kinds) for step in body.steps),
    )


def renamed_call(call: Call, rename: Rename) -> Call:
    """The call with other names of its variables."""
    holders = (
        one
        if one.semantic_var_id is None
        else replace(one, semantic_var_id=rename(one.semantic_var_id))
        for one in call.placeholders
    )
    return replace(call, placeholders=tuple(holders))
