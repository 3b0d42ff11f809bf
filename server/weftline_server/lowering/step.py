"""A kind of steps: how it is lowered to a primitive, what its engine gets, and what comes back.

An engine gets plain inputs: texts, vectors, a query. The session's values also carry the items that
the texts came from, so that hits and reranked items keep their ids and metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from weftline.contract import transforms
from weftline.contract.errors import InvalidRequest
from weftline.contract.protocol import Call
from weftline.contract.steps import Body, Source, StepBase
from weftline_server.graph.primitive import (
    PLAIN,
    Effects,
    Flow,
    ItemFlow,
    Primitive,
    Read,
    Task,
    Traits,
)
from weftline_server.graph.primitive import PrimitiveBody as PrimitiveBody
from weftline_server.session.budget import value_bytes

CHARS_PER_TOKEN = 4  # a guess that needs no tokenizer
GUESSED_WORK = 64  # tokens of a step whose inputs are not known yet

S = TypeVar("S", bound=StepBase)
# The tools that engines run, by name: the engine's name, and what it says of the tool.
Tools = Mapping[str, tuple[str, Mapping[str, Any]]]
Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class StepBody(PrimitiveBody):
    """The step that a primitive runs."""

    step: StepBase


@dataclass(frozen=True, slots=True)
class Resolver:
    """What the names in a step mean on this server. Each function raises if there is no such thing.

    `prepare` names the model of a call, `resource` is what runs a step, `tools` are all tools.
    """

    prepare: Callable[[Call], Call]
    resource: Callable[[StepBase], str]
    tools: Callable[[], Tools]


@dataclass(frozen=True, eq=False)
class Kinds:
    """The kinds of steps by name. The kinds lower the steps and calls of a submit or a body."""

    by_name: Mapping[str, StepKind[Any]]
    lower_call: Callable[[Call, str, str], Task]  # a call, its model, the task's id

    def of(self, step: StepBase) -> StepKind[Any]:
        return self.by_name[kind_name(step)]

    def lower_step(
        self, step: StepBase, resource: str, id: str | None = None, batch: int | None = None
    ) -> Task:
        """The task of a step that `resource` runs: a model, a store, or "" for the server itself.

        `batch` is the engine's efficient number of items; None if it takes whole lists only.
        Raises InvalidRequest for a transform or a constant that does not fit.
        """
        return self.of(step).lower(step, resource, id or f"s_{uuid.uuid4().hex[:12]}", batch, self)

    def is_free(self, body: Body) -> bool:
        """Whether a body changes nothing outside the graph, so that it does no harm if it runs for
        nothing."""
        return not any(self.of(step).changes(step, self) for step in body.steps)


class Field(NamedTuple):
    """One sentence about a field, and a value that it may have."""

    says: str
    example: Any


Says = Mapping[str, Field]


class StepKind(Generic[S]):
    """A kind of steps. The defaults are true of most kinds: an engine computes the step's value
    from the values that the step reads, and changes nothing.

    `engine` is the table of the server's configuration that names such an engine. `says` describes
    the fields that only steps of this kind have. What is refused of a step that `is_call` is
    refused as a call's.
    """

    traits: ClassVar[Traits] = PLAIN
    engine: ClassVar[str] = "store"
    says: ClassVar[Says] = MappingProxyType({})
    is_call: ClassVar[bool] = False

    def effects(self, step: S) -> Effects:
        """The effects that running the step again would have."""
        return Effects.NONE

    def changes(self, step: S, kinds: Kinds) -> bool:
        """Whether it, or the body that it repeats, changes something outside the graph."""
        body = repeated_body(step)
        return self.effects(step) is not Effects.NONE or not (body is None or kinds.is_free(body))

    def resolved(self, step: S, resolver: Resolver) -> S:
        """The step with what its names mean; see also `control.body.resolved`."""
        return step

    def later(self, step: S, kinds: Kinds) -> tuple[str, ...]:
        """The variables that it may read once it has decided something."""
        return ()

    def transforms(self, step: S) -> Iterator[Sequence[Mapping[str, Any]]]:
        """The transforms of the step's inputs, and of the values that the step asks its body
        for."""
        return (source.transforms for source in step.sources.values())

    def predicates(self, step: S) -> Iterator[Mapping[str, Any]]:
        return iter(())

    def inputs(self, step: S, given: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of the op, from what the step reads, by field. The driver adds the tenant of a
        step that works on a store. Raises InvalidRequest for what does not fit.
        """
        return {}

    def result(self, step: S, given: Mapping[str, Any], result: Any) -> object:
        """The value of the step, from what it read and what the engine said."""
        return result

    def wait_s(self, step: S) -> float:
        """The seconds that the server lets pass before it computes a step that needs no engine."""
        return 0

    def item_flow(self, step: S, batch: int | None) -> ItemFlow | None:
        """How items pass through the step; see `Kinds.lower_step` for the `batch`."""
        return None

    def renamed(self, step: S, rename: Rename, kinds: Kinds) -> S:
        """The step with other names of its variables."""
        changes = {one.name: _renamed(getattr(step, one.name), rename) for one in fields(step)}
        changes["after"] = tuple(map(rename, step.after))
        changes["out"] = None if step.out is None else rename(step.out)
        return replace(step, **changes)

    def lower(self, step: S, resource: str, id: str, batch: int | None, kinds: Kinds) -> Task:
        """The task of the step; see `Kinds.lower_step`."""
        sources = step.sources
        constants = {name: one.value for name, one in sources.items() if one.var is None}
        for name, source in sources.items():
            for spec in source.transforms:
                transforms.read(spec)  # its pattern was compiled before, in a process of its own
            if source.var is None and source.transforms:
                raise InvalidRequest("transforms go with a variable, not with a value", param=name)
        size = sum(map(value_bytes, constants.values()))
        if sources and len(constants) == len(sources):
            self.inputs(step, constants)  # what can be checked is checked before anything runs
        variables = step.variables
        reads = tuple(dict.fromkeys((*variables, *step.after)))
        primitive = Primitive(
            id=f"{id}/0",
            task=id,
            kind=kind_name(step),
            resource=resource,
            reads=tuple(Read(one, Flow.WHOLE if one in variables else Flow.ORDER) for one in reads),
            writes=(step.out or f"{id}.out",),
            effects=self.effects(step),
            work=size // CHARS_PER_TOKEN + (GUESSED_WORK if variables else 1),
            body=StepBody(step),
            items=self.item_flow(step, batch),
            traits=self.traits,
        )
        return Task(
            id=id,
            name=step.name or kind_name(step),
            resource=resource,
            primitives=(primitive,),
            reads=reads,
            constant_bytes=size,
        )


def kind_name(step: StepBase) -> str:
    """The name of the step's kind, as the client and the engines know it."""
    name: str = step.kind  # type: ignore[attr-defined]  # a field of each class, not of their base
    return name


def repeated_body(step: StepBase) -> Body | None:
    """The body that the step repeats; None of a step without one."""
    return getattr(step, "body", None)


def named(step: StepBase) -> str:
    """What messages call the step."""
    return f"{kind_name(step)} {step.name!r}" if step.name else kind_name(step)


def step_of(primitive: Primitive) -> Any:
    assert isinstance(primitive.body, StepBody), f"{primitive.kind} is no step"
    return primitive.body.step


def _renamed(value: Any, rename: Rename) -> Any:
    """A field's value with other names of the variables in its sources."""
    match value:
        case Source(var=str(var)):
            return replace(value, var=rename(var))
        case tuple():
            return tuple(_renamed(one, rename) for one in value)
        case dict():
            return {name: _renamed(one, rename) for name, one in value.items()}
    return value
