"""The plan of a graph, and the typed interface of the passes that make it.

A pass reads the graph and the plan so far, and returns `Findings`: annotations of primitives, or
primitives in a new form. `verify` checks all of a pass's findings before any of them is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from weftline.contract.protocol import Criterion
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Flow, Primitive, PrimitiveBody, Read

# Passes leave out primitives that read more. A list of 10,000 items comes in pieces, and to look at
# all of its edges for each piece took 9 of 20 s. No prompt has so many inputs.
MOST_EDGES = 1024

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Findings(NamedTuple):
    """The result of a pass, keyed by primitive id. `rewritten` holds primitives in a new form."""

    depth: Mapping[str, int] = _NOTHING
    objective: Mapping[str, Criterion] = _NOTHING
    group: Mapping[str, str] = _NOTHING
    prefixes: Mapping[str, tuple[str, ...]] = _NOTHING
    rewritten: Mapping[str, Primitive] = _NOTHING


@dataclass(slots=True)
class Plan:
    """The findings of the passes so far, keyed by primitive id. Only `analyse` writes.

    `criteria` holds the criterion that the readers of a variable gave, by variable. `presumed` has
    the criterion of the get that sent a call, by output, where nobody has asked for the output
    itself. Primitives in `started` are on an engine or have ended: such primitives keep their form,
    their depth and their group. Those in `ended` also keep their objective. Primitives in `rewired`
    wait for fewer variables than before, and may be ready now.
    """

    criteria: Mapping[str, Criterion]
    presumed: Mapping[str, Criterion] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    depth: dict[str, int] = field(default_factory=dict)
    objective: dict[str, Criterion] = field(default_factory=dict)
    group: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rewired: dict[str, None] = field(default_factory=dict)

    def advice(self, primitive: str) -> tuple[int, Criterion, str]:
        """Advice to an engine about a primitive: its depth, objective and group."""
        objective = self.objective.get(primitive, Criterion.LATENCY)
        return self.depth.get(primitive, 0), objective, self.group.get(primitive, "")

    def annotate(self, findings: Findings) -> None:
        """Add verified annotations."""
        depth, objective, group, prefixes, _ = findings
        if depth:
            self.depth.update(depth)
        if objective:
            self.objective.update(objective)
        if group:
            self.group.update(group)
        if prefixes:
            self.prefixes.update(prefixes)


# Primitives to look at, consumers before producers. Each primitive comes with its consumers that
# are new or have changed.
Changed = Mapping[str, Collection[str]]


# The flow of an edge, which is a variable between the primitive that writes it and the body of one
# that reads it. None leaves it as it is.
FlowOf = Callable[[Primitive, PrimitiveBody, str], Flow | None]


def readers_of(changed: Changed, plan: Plan) -> list[str]:
    """The changed primitives and their consumers, each once, without those that have started."""
    found = dict.fromkeys(changed)
    for below in changed.values():
        found.update(dict.fromkeys(below))
    return [id for id in found if id not in plan.started]


def widened(graph: Graph, plan: Plan, changed: Changed, flow_of: FlowOf) -> Findings:
    """Rewrite the prompts that read edges which need not be whole, as `flow_of` says."""
    rewritten: dict[str, Primitive] = {}
    for id in readers_of(changed, plan):
        reader = graph.primitives[id]
        if not has_reads(reader) or len(reader.reads) > MOST_EDGES:
            continue
        reads = tuple([_widened(graph, reader, read, flow_of) for read in reader.reads])
        if reads != reader.reads:
            rewritten[id] = reader.reading(reads)
    return Findings(rewritten=rewritten)


def has_reads(primitive: Primitive) -> bool:
    """Whether the primitive is a prompt with inputs."""
    return primitive.body is not None and bool(primitive.reads)


def _widened(graph: Graph, reader: Primitive, read: Read, flow_of: FlowOf) -> Read:
    producer = graph.producer.get(read.variable)
    if producer is None or read.flow is not Flow.WHOLE or reader.body is None:
        return read
    flow = flow_of(graph.primitives[producer], reader.body, read.variable)
    return read if flow is None else Read(read.variable, flow)


class Pass(Protocol):
    """A pure function that answers one question about some primitives."""

    def __call__(self, graph: Graph, plan: Plan, changed: Changed) -> Findings: ...


class InvalidFindings(Exception):
    """A pass returned findings that do not fit the graph. None of them was applied."""


def verify(graph: Graph, plan: Plan, findings: Findings) -> None:
    """Raise InvalidFindings unless every finding can be applied.

    Annotations name primitives of the graph. A rewritten primitive has not started, and keeps its
    id, its task and the variables that it writes.
    """
    known = graph.primitives
    depth, objective, group, prefixes, rewritten = findings
    for annotated in (depth, objective, group, prefixes):
        for id in annotated:
            if id not in known:
                raise InvalidFindings(f"the graph has no primitive {id!r}")
    for id, primitive in rewritten.items():
        old = known.get(id)
        if old is None:
            raise InvalidFindings(f"the graph has no primitive {id!r}")
        if id in plan.started:
            raise InvalidFindings(f"primitive {id!r} has started")
        if (primitive.id, primitive.task, primitive.writes) != (id, old.task, old.writes):
            raise InvalidFindings(f"primitive {id!r} may change neither task nor writes")
        if (primitive.kind, primitive.effects) != (old.kind, old.effects):
            raise InvalidFindings(f"primitive {id!r} may change neither kind nor effects")
        if primitive.reads != old.reads:
            _verify_reads(primitive, old)


def _verify_reads(new: Primitive, old: Primitive) -> None:
    """A new form reads every value that the old form reads, but may leave out reads that only
    order."""
    values = {read.variable for read in old.reads if read.flow is not Flow.ORDER}
    if not values <= {read.variable for read in new.reads if read.flow is not Flow.ORDER}:
        raise InvalidFindings(f"primitive {new.id!r} must read all values that it needs")
