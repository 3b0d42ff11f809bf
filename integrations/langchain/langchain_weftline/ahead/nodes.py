"""Begins the model calls of a part of a run, when LangGraph or LangChain starts that part.

Such parts are the nodes of a graph that are chains, and the part of a classic chain that combines
documents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_weftline.ahead.handler_lookup import Begun
from langchain_weftline.ahead.prefetch import Ahead
from langchain_weftline.lower.lowering import Lowering
from langchain_weftline.model.envelope import session_within

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

NodePath = tuple[str, ...]
"""A node's name, after the names of the nodes whose graphs contain it."""

# LangGraph marks the run of a node itself with this tag, and not the runs inside it.
_STEP = "graph:step:"
# One call gains nothing: LangGraph makes it at once.
MIN_CALLS = 2


@dataclass(frozen=True, slots=True)
class Start:
    """A run that starts."""

    name: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any]


class PartStarter(Begun):
    """Begins the calls of parts of a run when they start. It is a callback handler of the run."""

    ignore_chain = False
    run_inline = True

    def __init__(self) -> None:
        self._begun: dict[UUID, Ahead] = {}  # by the part's run, and by those inside it
        # Reentrant: a garbage collection while it is held may end a run, which comes here, too.
        self._lock = RLock()

    @abstractmethod
    def chain_of(self, start: Start) -> Any:
        """The chain whose calls begin with this run; None for any other run."""

    def on_chain_start(
        self,
        serialized: object,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        """Begin the calls of a part that starts."""
        if parent_run_id is None:
            return
        begun = self._begun.get(parent_run_id)
        if begun is None:
            chain = self.chain_of(Start(name, tags or (), metadata or {}))
            if chain is not None:
                begun = begin(chain, inputs, parent_run_id)
        if begun is not None:
            with self._lock:
                self._begun[run_id] = begun

    def on_chain_end(self, outputs: object, *, run_id: UUID, **_: Any) -> None:
        """When a part has ended, cancel those of its calls that were not used."""
        with self._lock:
            begun = self._begun.pop(run_id, None)
            is_over = begun is not None and begun not in self._begun.values()
        if begun is not None and is_over:
            begun.close()

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A part that has failed has ended, too."""
        self.on_chain_end(None, run_id=run_id)

    def of(self, parent: UUID | None) -> Iterable[Ahead]:
        found = None if parent is None else self._begun.get(parent)
        return () if found is None else (found,)


class Nodes(PartStarter):
    """Begins the calls of a graph's nodes."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        super().__init__()
        self.chains: Mapping[NodePath, Any] = dict(_chains(graph, ()))

    def chain_of(self, start: Start) -> Any:
        if not self.chains or not is_task(start.tags):
            return None
        return self.chains.get(node_path(start.metadata))


class Combined(PartStarter):
    """Begins the calls that combine what a classic chain has retrieved."""

    def __init__(self, combine: Any) -> None:
        super().__init__()
        self._combine = combine
        self._name = combine.get_name()

    def chain_of(self, start: Start) -> Any:
        return self._combine if start.name == self._name else None


def begin(chain: Any, given: Any, parent: UUID) -> Ahead | None:
    """The calls of `chain` for its input, submitted as a part of the session of the whole run."""
    # Any of the calls may be streamed, which is decided later, at each model call.
    lowering = Lowering(streams=True)
    lowering.plan(chain, given)
    calls, steps = lowering.calls, lowering.searches.drafts
    if not calls.drafts or len(calls.drafts) + len(steps) < MIN_CALLS:
        return None
    assert calls.server is not None, "a call has a model"
    session = session_within(calls.models[0], parent)
    return Ahead(calls.server, calls.drafts, steps, parts=True, joins=session)


def is_task(tags: Sequence[str]) -> bool:
    """Whether the run with these tags is that of a node."""
    return any(tag.startswith(_STEP) for tag in tags)


def node_path(metadata: Mapping[str, Any]) -> NodePath:
    """The path of the node that runs: LangGraph gives names and ids, `outer:id|inner:id`."""
    space = str(metadata.get("langgraph_checkpoint_ns", ""))
    return tuple(part.partition(":")[0] for part in space.split("|"))


def _chains(graph: Any, path: NodePath) -> Iterator[tuple[NodePath, Any]]:
    """The nodes that are chains, of `graph` and of the graphs that are its nodes."""
    for name, node in graph.nodes.items():
        bound = node.bound
        if hasattr(bound, "nodes"):
            yield from _chains(bound, (*path, name))
        elif not hasattr(bound, "func"):
            yield (*path, name), bound
