"""The value of a merge, found as the server finds it.

A framework goes on as soon as it has the hits. The server's own message about the merge may arrive
a moment later.
"""

from __future__ import annotations

from dataclasses import dataclass

from weftline.contract.errors import TransformFailed, WeftlineError
from weftline.contract.hit_fusion import fused, lists_of
from weftline.contract.steps import Merge
from weftline.kit.claims import ReadValue
from weftline.sdk.watch_events import Value


@dataclass(frozen=True, slots=True)
class FusedHits:
    """The documents that `merge` makes of its inputs."""

    merge: Merge
    inputs: tuple[ReadValue, ...]

    def peek(self) -> Value | WeftlineError | None:
        """The value, or the error of an input. None while an input has not arrived."""
        lists = []
        for one in self.inputs:
            found = one.peek()
            if not isinstance(found, Value):
                return found
            lists.append(lists_of(found.value))
        try:
            return Value(self.merge.out or "", fused(self.merge, lists), {})
        except TransformFailed as failure:
            return failure
