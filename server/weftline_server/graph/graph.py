"""Producers and consumers of a session's variables (Parrot section 4.2), kept free of cycles.

A graph grows while it runs and is never rebuilt. `check` looks only at the new calls and at what
they can reach, so adding to a large session costs what the addition costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from weftline.errors import AlreadySet, CyclicGraph, DuplicateProducer, InvalidRequest
from weftline.protocol import Call, InOut, Placeholder


@dataclass(frozen=True, slots=True)
class Node:
    """A submitted call with its id; every output has a variable by now."""

    id: str
    call: Call
    inputs: tuple[Placeholder, ...] = field(init=False)
    outputs: tuple[Placeholder, ...] = field(init=False)
    reads: tuple[str, ...] = field(init=False)  # ids of the variables that the prompt needs
    writes: tuple[str, ...] = field(init=False)  # those that it sets, in the order of the prompt

    def __post_init__(self) -> None:
        holders = self.call.placeholders
        order = {s.output: i for i, s in enumerate(self.call.segments()) if s.output is not None}
        outputs = sorted((p for p in holders if p.in_out is InOut.OUT), key=lambda p: order[p.name])
        inputs = tuple(p for p in holders if p.in_out is InOut.IN)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", tuple(outputs))
        object.__setattr__(self, "reads", tuple(dict.fromkeys(_variables(inputs))))
        object.__setattr__(self, "writes", tuple(_variables(outputs)))


def _variables(holders: Iterable[Placeholder]) -> Iterator[str]:
    return (p.semantic_var_id for p in holders if p.semantic_var_id is not None)


class Graph:
    """The calls of one session and the variables between them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.producer: dict[str, str] = {}  # variable → the one call that writes it
        self.consumers: dict[str, list[str]] = {}  # variable → calls that read it

    def check(self, nodes: Sequence[Node], is_set: Iterable[str] = ()) -> None:
        """Raise unless `nodes` can join: `is_set` are the variables that already have a value.

        Errors: DuplicateProducer, AlreadySet, CyclicGraph; InvalidRequest for want of an output.
        """
        taken = set(is_set)
        fresh: dict[str, str] = {}
        for node in nodes:
            if not node.writes:
                raise InvalidRequest(f"call {node.call.name!r} has no output", param=node.call.name)
            for var in node.writes:
                if var in taken:
                    raise AlreadySet(f"variable {var!r} already has a value", param=var)
                if var in fresh or var in self.producer:
                    raise DuplicateProducer(
                        f"variable {var!r} would be written by two calls", param=var
                    )
                fresh[var] = node.id
        self._check_cycles(nodes, fresh)

    def _check_cycles(self, nodes: Sequence[Node], fresh: dict[str, str]) -> None:
        """Depth-first over the new calls and what hangs below them; old calls alone are acyclic."""
        added = {node.id: node for node in nodes}
        readers: dict[str, list[str]] = {}
        for node in nodes:
            for var in node.reads:
                readers.setdefault(var, []).append(node.id)

        def next_of(call: str) -> Iterator[str]:
            node = added.get(call) or self.nodes[call]
            for var in node.writes:
                yield from readers.get(var, ())
                yield from self.consumers.get(var, ())

        done: set[str] = set()
        for start in added:
            if start in done:
                continue
            path: dict[str, Iterator[str]] = {start: next_of(start)}
            while path:
                call = next(reversed(path))
                child = next(path[call], None)
                if child is None:
                    done.add(call)
                    del path[call]
                elif child in path:
                    node = added.get(child) or self.nodes[child]
                    raise CyclicGraph(
                        f"call {node.call.name!r} waits for its own output", param=node.call.name
                    )
                elif child not in done:
                    path[child] = next_of(child)

    def add(self, nodes: Sequence[Node]) -> None:
        """Take `nodes`, which `check` has let through."""
        for node in nodes:
            self.nodes[node.id] = node
            for var in node.writes:
                self.producer[var] = node.id
            for var in node.reads:
                self.consumers.setdefault(var, []).append(node.id)

    def downstream(self, call: str) -> Iterator[str]:
        """Calls that read an output of `call`, each once."""
        seen: set[str] = set()
        for var in self.nodes[call].writes:
            for reader in self.consumers.get(var, ()):
                if reader not in seen:
                    seen.add(reader)
                    yield reader

    def upstream(self, call: str) -> Iterator[str]:
        """Calls that write an input of `call`, each once."""
        writers = (self.producer[var] for var in self.nodes[call].reads if var in self.producer)
        yield from dict.fromkeys(writers)

    def topological(self) -> list[str]:
        """Every call after the calls that it waits for."""
        waiting = {call: sum(1 for _ in self.upstream(call)) for call in self.nodes}
        order = [call for call, count in waiting.items() if count == 0]
        for call in order:
            for child in self.downstream(call):
                waiting[child] -= 1
                if waiting[child] == 0:
                    order.append(child)
        assert len(order) == len(self.nodes), "the graph has a cycle"
        return order
