"""The client's checks of objects whose fields the server uses.

A function that reads a field of a pydantic object runs in the server. The plain chain has made the
whole object before, and may have failed at it. So the client makes it too: the check is a step of
the client that nothing waits for. If it fails, so does all that reads a field of the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig

from langchain_weftline.lower.steps import StepRun, Steps
from langchain_weftline.lower.symbols import Make, Ref

_Key = tuple[str, str]


class Check(Runnable[Any, Any]):
    """Returns the object that it gets. Making the object for it was the check."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input


class Checks:
    """The objects of one lowering that the client is asked to check, each once."""

    def __init__(self) -> None:
        self._claimed: set[_Key] = set()

    def claim(self, value: Any, *functions: Any, unread: bool = False) -> list[Ref]:
        """The objects in `value` of which functions of the user read an attribute, each once.

        With `unread` also the others, but for those that may be None.
        """
        claimed = []
        codes = [one.__code__ for one in functions if isinstance(one, FunctionType)]
        names = [name for code in codes for name in code.co_names]
        for ref in objects_in(value):
            assert ref.shape is not None and ref.make is not None, "it is an object"
            read = next((name for name in names if ref.shape.has(name)), None)
            is_sure = unread and not _may_be_none(ref)
            if _key(ref) in self._claimed or (read is None and not is_sure):
                continue
            self._claimed.add(_key(ref))
            make = ref.make if read is None else partial(_read, ref.make, read)
            claimed.append(replace(ref, make=make))
        return claimed

    def state(self) -> set[_Key]:
        return set(self._claimed)

    def restore(self, state: set[_Key]) -> None:
        """Forget the claims since `state`."""
        self._claimed = state

    def run(self, claimed: Sequence[Ref]) -> Steps:
        """Have the client check objects. The steps that follow need not wait."""
        for ref in claimed:
            yield StepRun(Check(), ref, {}, is_quick=True, may_wait=True)


def objects_in(value: Any) -> Iterator[Ref]:
    """The objects with certain fields in a value."""
    if isinstance(value, Ref):
        if value.shape is not None:
            yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from objects_in(item)


def _may_be_none(ref: Ref) -> bool:
    """Whether an object is None where a model has called no tool."""
    return any(spec["op"] == "tool_calls" for spec in ref.transforms)


def _key(ref: Ref) -> _Key:
    return ref.var, repr(ref.transforms)


def _read(make: Make, name: str, value: Any) -> Any:
    """The object that `make` makes, or None where a model has called no tool."""
    made = make(value)
    return made if made is not None else getattr(made, name)


class Readers:
    """Which variables depend on the fields of an object, so that they fail if its check does."""

    def __init__(self) -> None:
        self._of_fields: dict[str, set[str]] = {}
        self._of_all: dict[str, set[str]] = {}
        self._failed: dict[str, BaseException] = {}
        self._lost: set[str] = set()  # no value of these objects counts, not only no field

    def add(self, name: str, reads: Iterable[Ref | str]) -> BaseException | None:
        """Note the variables that the variable `name` reads. Returns the error of a check that has
        failed.

        A step of the server names only the variables that it reads. These count as fields.
        """
        for read in reads:
            var = read if isinstance(read, str) else read.var
            self._of_all.setdefault(var, set()).add(name)
            if isinstance(read, str) or read.is_field:
                self._of_fields.setdefault(var, set()).add(name)
        return next((e for var, e in self._failed.items() if name in self._after(var)), None)

    def fail(self, var: str, error: BaseException) -> set[str]:
        """Note that the check of the object in `var` has failed. Returns what depends on it."""
        self._failed[var] = error
        return self._after(var)

    def lose(self, var: str, error: BaseException) -> set[str]:
        """Note that the answer in `var` has no valid form. Returns what depends on it."""
        self._lost.add(var)
        return self.fail(var, error)

    def error_of(self, names: Iterable[str]) -> BaseException | None:
        """The error of the first of these objects whose check has failed."""
        return next((self._failed[name] for name in names if name in self._failed), None)

    def _after(self, var: str) -> set[str]:
        readers = self._of_all if var in self._lost else self._of_fields
        waiting, found = list(readers.get(var, ())), set[str]()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self._of_all.get(name, ())
        return found
