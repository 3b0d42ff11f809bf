"""The tasks that a graph of LangGraph will start together, as far as its public events tell.

LangGraph starts the tasks of a superstep one by one. The edges of a node and the `Send`s of a
router tell earlier how many there will be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage

NodePath = tuple[str, ...]
"""A node's name, after the names of the nodes whose graphs contain it."""

Edges = Mapping[NodePath, frozenset[str]]
"""The nodes that follow each node, and its graph's start, without a condition."""

# LangGraph's names of a graph's start, and of the path of a task by `Send`.
START, PUSH = "__start__", "__pregel_push"
# LangGraph marks the run of a node itself with this tag, and not the runs inside it.
_STEP = "graph:step:"


@dataclass(frozen=True, slots=True)
class Task:
    """A node's run: its step, its path, and whether a `Send` has started it."""

    step: int
    path: NodePath
    is_sent: bool


@dataclass(slots=True)
class Announced:
    """The tasks of one step that have not started: by edges, and by `Send`.

    LangGraph starts those by `Send` first. `has_sent` says that one of them has started.
    """

    names: set[str] = field(default_factory=set)
    sends: int = 0
    has_sent: bool = False


@dataclass(eq=False, slots=True)
class Due:
    """The tasks that a graph has not started yet, by step. None stands for its first step."""

    steps: dict[int | None, Announced] = field(default_factory=dict)

    def add(self, step: int | None, names: frozenset[str], sends: int) -> None:
        """Note tasks of a step that is to come."""
        if names or sends:
            found = self.steps.setdefault(step, Announced())
            found.names |= names
            found.sends += sends

    def start(self, task: Task) -> bool:
        """Note that a task starts. Returns whether others of its step are due."""
        if task.path[-1] == START:
            return False
        first = self.steps.pop(None, None)
        if first is not None and task.path[-1] in first.names:
            self.add(task.step, frozenset(first.names), 0)
        # The tasks of earlier steps have started, or never will.
        for step in [step for step in self.steps if step is not None and step < task.step]:
            del self.steps[step]
        found = self.steps.get(task.step)
        if found is None:
            return False
        if task.is_sent:
            found.sends, found.has_sent = max(0, found.sends - 1), True
        else:
            found.sends = found.sends if found.has_sent else 0
            found.names.discard(task.path[-1])
        return bool(found.names) or found.sends > 0


def is_task(tags: Sequence[str]) -> bool:
    """Whether the run with these tags is that of a node."""
    return any(tag.startswith(_STEP) for tag in tags)


def task_of(tags: Sequence[str], metadata: Mapping[str, Any]) -> Task | None:
    """The task whose run has these tags and metadata; None for any other run."""
    step = metadata.get("langgraph_step")
    if not isinstance(step, int) or not is_task(tags):
        return None
    path = node_path(metadata)
    kind, *_ = metadata.get("langgraph_path") or ("",)
    return Task(step, path, kind == PUSH)


def node_path(metadata: Mapping[str, Any]) -> NodePath:
    """The path of the node that runs: LangGraph gives names and ids, `outer:id|inner:id`."""
    space = str(metadata.get("langgraph_checkpoint_ns", ""))
    return tuple(part.partition(":")[0] for part in space.split("|"))


def edges_of(graph: Any, path: NodePath = ()) -> Iterator[tuple[NodePath, frozenset[str]]]:
    """The edges of `graph`, and of the graphs that are its nodes. Others have none here."""
    builder = getattr(graph, "builder", None)
    nodes = getattr(builder, "nodes", {})
    # A deferred node starts in a later step than its edge says.
    together = {name for name, node in nodes.items() if not getattr(node, "defer", False)}
    ends: dict[str, set[str]] = {}
    for start, end in getattr(builder, "edges", ()):
        ends.setdefault(start, set()).add(end)
    for start, found in ends.items():
        yield (*path, start), frozenset(found & together)
    for name, node in graph.nodes.items():
        if hasattr(node.bound, "nodes"):
            yield from edges_of(node.bound, (*path, name))


def is_resumed(given: object) -> bool:
    """Whether the input of a graph goes on with an earlier run, so that it may start anywhere."""
    types = sys.modules.get("langgraph.types")
    return given is None or (types is not None and isinstance(given, types.Command))


def tools_in(outputs: object) -> int:
    """How many tools the model's answer in the output of a node calls.

    LangChain's agents have a task by `Send` for each of them. No callback hears of their router.
    """
    types = sys.modules.get("langgraph.types")
    if isinstance(outputs, list) and len(outputs) == 1:
        return tools_in(outputs[0])
    if types is not None and isinstance(outputs, types.Command):
        return tools_in(outputs.update)
    messages = outputs.get("messages") if isinstance(outputs, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    return len(last.tool_calls) if isinstance(last, AIMessage) else 0


def sends_in(outputs: object) -> int:
    """How many tasks the output of a node or of a router asks for by `Send`."""
    types = sys.modules.get("langgraph.types")
    if types is None:
        return 0
    if isinstance(outputs, types.Send):
        return 1
    if isinstance(outputs, types.Command):
        return sends_in(outputs.goto)
    if isinstance(outputs, (list, tuple)):
        return sum(isinstance(one, types.Send) for one in outputs)
    return 0
