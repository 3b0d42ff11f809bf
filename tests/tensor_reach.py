"""The tensors that an object reaches: what a captured graph reads if the object is its function."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

from torch import Tensor


def tensors_of(start: object) -> list[Tensor]:
    """All tensors that an object reaches by its attributes, items and closure."""
    found, todo, seen = list[Tensor](), [start], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, FunctionType):
            todo += [cell.cell_contents for cell in one.__closure__ or ()]
        else:
            todo += gc.get_referents(one)
    return found
