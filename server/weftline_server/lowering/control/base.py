"""The parts that all steps that decide share: their primitives, their inputs, their task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weftline.contract import predicates, transforms
from weftline.contract.errors import InvalidRequest
from weftline.contract.steps import Source, StepBase
from weftline.contract.vectors import plain
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import (
    Flow,
    Primitive,
    PrimitiveBody,
    Read,
    Specs,
    Task,
    Traits,
    Where,
)
from weftline_server.lowering.bounds import is_large, is_slow
from weftline_server.session.budget import value_bytes
from weftline_server.session.variable import SessionVariable

Variables = Mapping[str, SessionVariable]


@dataclass(frozen=True, slots=True)
class Question:
    """What a step needs of a value before it decides: the result of the transforms `specs`.

    With `cases` the step needs the number of the first predicate that holds for that result, or
    None.
    """

    specs: Specs
    value: object
    cases: tuple[predicates.Predicate, ...] | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the answer may take milliseconds."""
        if self.specs and is_large(self.specs, self.value):
            return True
        return any(is_slow(when, self.value) for when in self.cases or ())

    def answer(self) -> object:
        """The answer. Raises TransformFailed."""
        found = transforms.run(self.specs, self.value)
        return found if self.cases is None else predicates.first(self.cases, found)


class ControlBody(PrimitiveBody, ABC):
    """The body of a primitive that the server computes from the session's variables."""

    def asks(self, variables: Variables) -> Question | None:
        """The question that must be answered before there is a value; None if there is no
        question."""
        return None

    @property
    def reason(self) -> FinishReason | None:
        """Why the step ended, if there is more to say than that it did."""
        return None

    @abstractmethod
    def value(self, variables: Variables, answer: Any = None) -> object:
        """The primitive's value, with the answer to what it `asks`.

        Raises TransformFailed or InvalidRequest.
        """


BY_SERVER = Traits(where=Where.SERVER)
GROWS = Traits(where=Where.SERVER, anywhere=True)  # what it adds may change any place
ENDS = Traits(where=Where.SERVER, has_order=False)  # it waits for all of a body


def primitive(
    task: str,
    number: int,
    kind: str,
    writes: str,
    body: ControlBody,
    reads: Iterable[Read] = (),
    traits: Traits = BY_SERVER,
) -> Primitive:
    """Primitive `number` of a task; all but the first come after the first."""
    return Primitive(
        id=f"{task}/{number}",
        task=task,
        kind=kind,
        resource="",
        reads=tuple(reads),
        writes=(writes,),
        after=(f"{task}/0",) if number else (),
        work=1,
        body=body,
        traits=traits,
    )


def rewired(primitive: Primitive, reads: Iterable[Read], body: ControlBody) -> Primitive:
    """The primitive with other inputs."""
    return replace(primitive, reads=tuple(reads), body=body)


def waits_for(step: StepBase) -> tuple[str, ...]:
    """The variables that the step needs before it decides. Raises InvalidRequest for a transform
    or a constant that does not fit.
    """
    for source in step.sources.values():
        for spec in source.transforms:
            transforms.read(spec)
        if source.var is None and source.transforms:
            raise InvalidRequest("transforms go with a variable, not with a value", param="in")
    return tuple(dict.fromkeys((*step.variables, *step.after)))


def reads_of(
    waits: Sequence[str], later: Iterable[str], sides: Collection[str] = ()
) -> tuple[Read, ...]:
    """Edges from the variables that a step needs before it decides, and from those that it may read
    after its decision. Whether anything reads `sides` depends on a decision.
    """
    rest = (variable for variable in later if variable not in waits)
    flows = ((one, Flow.SIDE if one in sides else Flow.LATER) for one in rest)
    return (*map(Read, waits), *(Read(*one) for one in flows))


def task_of(step: StepBase, id: str, primitives: Sequence[Primitive], later: Iterable[str]) -> Task:
    """The task of a step. The failure of a variable in `later` fails it only where it is read."""
    waits = waits_for(step)
    rest = tuple(dict.fromkeys(variable for variable in later if variable not in waits))
    constants = [one.value for one in step.sources.values() if one.var is None]
    return Task(
        id=id,
        name=step.name or str(primitives[0].kind),
        resource="",
        primitives=tuple(primitives),
        reads=(*waits, *rest),
        constant_bytes=sum(map(value_bytes, constants)),
        tolerates=frozenset(rest),
    )


def raw(source: Source, variables: Variables) -> object:
    """The value of a source before its transforms, as JSON."""
    return source.value if source.var is None else plain(variables[source.var].value)
