"""Primitives: the vertices of the graph, and the unit that engines execute (Teola section 4).

A client submits tasks, which are calls and other steps. Lowering turns each task into primitives
of one kind each. A call with outputs y1 … yk becomes k primitives of kind `generate` in a row;
primitive i reads the inputs and outputs that stand in the prompt before y_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from weftline.contract.protocol import Call, Criterion
from weftline.contract.steps import Step
from weftline_engine.api.record import record


class Flow(StrEnum):
    """How a value travels along an edge of the graph."""

    WHOLE = "whole"  # the reader needs the finished value
    STREAM = "stream"  # the reader can use the text while it is generated
    ITEMS = "items"  # the reader can use each item of a list when it is complete
    ORDER = "order"  # no value travels: the reader starts after the writer has ended
    OUTCOME = "outcome"  # the reader takes a failure, too: it starts when the writer has ended
    LATER = "later"  # the reader does not wait: it or a task that it adds may read it later
    SIDE = "side"  # as LATER, and it depends on a decision whether any reads it


DISTANT = frozenset({Flow.LATER, Flow.SIDE})  # the reader waits for none of these


class Effects(StrEnum):
    """The changes that a primitive makes outside the graph. They decide when it may run."""

    NONE = "none"  # may run early, twice, or for nothing
    IDEMPOTENT = "idempotent"  # may run again after a failure
    ONCE = "once"  # starts on settled input only, and is never retried


class PrimitiveId(NamedTuple):
    """A primitive of a session; as text it is the id of the op and of the context that it makes."""

    session: str
    primitive: str

    def __str__(self) -> str:
        return f"{self.session}/{self.primitive}"


Specs = tuple[Mapping[str, Any], ...]  # of transforms


class Read(NamedTuple):
    """An edge into a primitive: the variable that it reads, and the widest flow that it can use."""

    variable: str
    flow: Flow = Flow.WHOLE


class Where(StrEnum):
    """Where a primitive is computed."""

    ENGINE = "engine"
    SERVER = "server"  # by the server itself, in microseconds
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Traits:
    """What is true of all primitives of a kind. All of them share one Traits object, which lowering
    gives them.

    A kind that acts `anywhere` may change any place outside the graph: either nobody knows
    which place, or the tasks that the kind adds make the change. A kind that `chooses` decides
    which of several variables is needed. In a step of a kind that `generates` a model writes. A
    kind `of_request` serves one request of a client, and ends when the server does, as tool
    calls in the records of earlier versions do. `operation` is OpenTelemetry's name of what the
    kind does; "" is the kind's own name.
    """

    where: Where = Where.ENGINE
    has_prompt: bool = False
    anywhere: bool = False
    has_order: bool = True  # whether a primitive may have edges that only order
    chooses: bool = False
    of_request: bool = False
    generates: bool = False
    operation: str = ""


PLAIN = Traits()  # of a kind that an engine computes from values


class PrimitiveBody:
    """The part of a primitive that only its kind understands; plain immutable data.

    The methods say what is true of a body without a prompt.
    """

    __slots__ = ()

    def boundaries(self) -> tuple[str, ...]:
        """Prefix hashes at the ends of the prompt's segments."""
        return ()

    def streams_out(self, variable: str) -> bool:
        """Whether the text of an output is usable while it is generated."""
        return False

    def streams_in(self, variable: str) -> bool:
        """Whether the primitive can use the text of an input before the input is complete."""
        return False

    def joins(self, variable: str) -> Specs | None:
        """The transforms of an input, if the last joins the items of a list to a text, so that the
        text of the first items can be used before the list is complete; None if it does not.
        """
        return None

    def lost(self) -> object | None:
        """The value of a primitive that may have run, and must not run again; None if there can be
        none.
        """
        return None


@dataclass(frozen=True, slots=True)
class ItemFlow:
    """How lists pass through a primitive item by item. The result for an item does not depend on
    the other items, so that it may be computed before the list is complete.

    The primitive `takes` the items of one variable, after the transforms `through`; "" for none. If
    the primitive `gives` items, its value is a list of one result for each. A call `says` the
    transforms of its output, whose text may be a list. `count` items are known before it runs. Its
    engine computes `batch` items as fast, one by one, as more together; 0 if no engine is needed.
    The passes decide whether it `streams`: it starts with the first items, and its results are
    reported as they come. If it is `ordered`, the first results are the first items of its value.
    """

    takes: str = ""
    through: Specs = ()
    gives: bool = False
    says: Specs = ()
    count: int = 0
    batch: int = 0
    streams: bool = False
    ordered: bool = False


@record
class Primitive:
    """One vertex of the graph. `resource` names the model, store or service that runs it.

    A primitive is ready when every variable in `reads` has its value and every primitive in `after`
    has ended. `reads` are in the order in which the body uses them, each variable once. `work`
    estimates its cost in tokens, of which an engine generates `output` one by one. `id` is unique
    in its session.
    """

    id: str
    task: str
    kind: str
    resource: str
    reads: tuple[Read, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    effects: Effects = Effects.NONE
    work: int = 0
    output: int = 0
    body: PrimitiveBody | None = None
    items: ItemFlow | None = None
    traits: Traits = PLAIN

    def reading(self, reads: tuple[Read, ...], *, streams: bool = False) -> Primitive:
        """This primitive with other edges into it. `replace` does the same in twice the time.

        With `streams` its items stream from now on.
        """
        return Primitive(
            id=self.id,
            task=self.task,
            kind=self.kind,
            resource=self.resource,
            reads=reads,
            writes=self.writes,
            after=self.after,
            effects=self.effects,
            work=self.work,
            output=self.output,
            body=self.body,
            items=replace(self.items, streams=True) if streams and self.items else self.items,
            traits=self.traits,
        )


@record
class Task:
    """One submitted call or step: its primitives, in an order in which they can run.

    All primitives of a task succeed or all fail. `primitives` are as lowered; the graph holds the
    form that the passes have given them since. `reads` are the variables that its text names,
    including those that no primitive needs. `constant_bytes` is the size of the text and values
    that came with it. `call` is the submitted call, `step` the submitted step.

    A task that a step has added names it as its `owner`, and ends when the owner fails. The failure
    of a variable in `tolerates` does not fail the task. `restored_thoughts` counts the turns of its
    prompt in which the server has put thoughts back.
    """

    id: str
    name: str
    resource: str
    primitives: tuple[Primitive, ...]
    reads: tuple[str, ...] = ()
    criteria: Criterion | None = None
    priority: int = 0
    constant_bytes: int = 0
    call: Call | None = None
    step: Step | None = None
    owner: str = ""
    tolerates: frozenset[str] = frozenset()
    restored_thoughts: int = 0

    @property
    def writes(self) -> tuple[str, ...]:
        """The variables that its primitives write, in their order."""
        if len(self.primitives) == 1:
            return self.primitives[0].writes
        return tuple(var for primitive in self.primitives for var in primitive.writes)
