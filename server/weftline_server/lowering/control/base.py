"""What the steps that decide have in common: their primitives, their inputs, their task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from weftline import transforms
from weftline.errors import InvalidRequest
from weftline.steps import Source, StepBase
from weftline_engine.api import FinishReason
from weftline_server.graph.primitive import Flow, Primitive, Read, Specs, Task
from weftline_server.session.budget import value_bytes
from weftline_server.session.variable import Variable

Variables = Mapping[str, Variable]


class ControlBody(ABC):
    """The body of a primitive that the server computes from the session's variables."""

    @property
    def is_slow(self) -> bool:
        """Whether the value may take milliseconds."""
        return False

    @property
    def reason(self) -> FinishReason | None:
        """Why the step ended, if there is more to say than that it did."""
        return None

    @abstractmethod
    def value(self, variables: Variables) -> object:
        """The primitive's value. Raises TransformFailed or InvalidRequest."""

    def boundaries(self) -> tuple[str, ...]:
        return ()

    def streams_out(self, variable: str) -> bool:
        return False

    def streams_in(self, variable: str) -> bool:
        return False

    def joins(self, variable: str) -> Specs | None:
        return None


def primitive(
    task: str, number: int, kind: str, writes: str, body: ControlBody, reads: Iterable[Read] = ()
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
    """Edges from what a step needs before it decides, and from what it may read after that. Whether
    anything reads `sides` depends on a decision.
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


def read(source: Source, variables: Variables) -> object:
    """The value of a source after its transforms. Raises TransformFailed."""
    if source.var is None:
        return source.value
    return transforms.run(source.transforms, variables[source.var].value)
