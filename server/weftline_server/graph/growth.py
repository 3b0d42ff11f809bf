"""What a graph gets while it runs: tasks and rewired primitives that follow from a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from weftline.contract.errors import WeftlineError
from weftline_server.graph.graph import Graph
from weftline_server.graph.primitive import Primitive, Task


@dataclass(frozen=True, slots=True)
class Growth:
    """Tasks to add, new variables with their values, and waiting primitives in a new form.

    A variable in `released` is one that a rewired primitive does not read any more. What only
    served such a variable is skipped. The primitives in `cut` end with what they have so far.
    """

    tasks: tuple[Task, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    rewritten: Mapping[str, Primitive] = field(default_factory=dict)
    released: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


class Growing(ABC):
    """The body of a primitive whose end changes the graph.

    The growth follows from the value and the graph alone, so a replay grows in the same way. Where
    it does not give its value, that is for the server alone.
    """

    gives: ClassVar[bool] = False

    @abstractmethod
    def growth(self, graph: Graph, value: Any) -> Growth:
        """What the graph gets when the primitive ends with `value`. Raises a WeftlineError."""

    def failure(self, graph: Graph, error: WeftlineError, is_taken: bool) -> Growth:
        """What the graph gets when the primitive fails. Its value `is_taken` if a client has a part
        of it, so that nothing else may take its place.
        """
        return Growth()

    @property
    def changes(self) -> bool:
        """Whether what it adds to the graph changes something outside the graph."""
        return False

    @property
    def generates(self) -> bool:
        """Whether a model generates text in what it adds to the graph."""
        return False


class TakesItems(Growing):
    """A body that can take the items of its list one by one, before the list is complete."""

    taken: tuple[Any, ...]  # the items that the graph has tasks for

    @abstractmethod
    def growth_of(self, graph: Graph, offset: int, items: Sequence[Any]) -> Growth:
        """What the graph gets for `items`, the first of which has number `offset`.

        The growth names the primitive in a form that has taken the items.
        """
