"""The placeholders of a call that an adapter submits."""

from __future__ import annotations

from dataclasses import replace

from weftline.contract.protocol import Placeholder

OUTPUT = "out"
"""The output placeholder of every call."""


class Inputs:
    """The input placeholders of one call. Equal inputs with the same name share a placeholder."""

    def __init__(self) -> None:
        self._by_name: dict[str, Placeholder] = {}

    def bind(self, name: str, bound: Placeholder) -> str:
        """The name of the placeholder for `bound`: `name`, with a number if `name` is taken."""
        number, free = 1, name
        while free == OUTPUT or self._is_another(free, bound):
            number += 1
            free = f"{name}_{number}"
        self._by_name[free] = replace(bound, name=free)
        return free

    def _is_another(self, name: str, bound: Placeholder) -> bool:
        found = self._by_name.get(name)
        return found is not None and found != replace(bound, name=name)

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """All placeholders, in the order of their first use."""
        return tuple(self._by_name.values())
