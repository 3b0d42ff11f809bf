"""Results: the values that a feed waits for, and the parts of lists and of embedded texts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from weftline.contract.errors import Cancelled, WeftlineError
from weftline.contract.vectors import Vectors
from weftline.kit.faults import error_of
from weftline.sdk.background import Chain
from weftline.sdk.watch_events import Value, VariableFailed

LOST = False  # stands in a list for the result of an item that failed


class Result:
    """The result of one variable: its value, and the parts of its text as they are generated.

    Any number of readers, on any thread or loop, can wait for it. `thoughts` are those before the
    text, which are there when its first part is.
    """

    def __init__(self) -> None:
        self.value: Future[Value] = Future()
        self.text: Chain[str] = Chain()
        self.thoughts = ""
        self._has_parts = False

    def add(self, text: str, thoughts: str = "") -> None:
        self.thoughts = self.thoughts or thoughts
        self.text.add(text)
        self._has_parts = True

    def peek(self) -> Value | WeftlineError | None:
        """The value, or the error of the call that failed. None while neither has arrived."""
        if not self.value.done():
            return None
        return error_of(self.value) or self.value.result()

    def settle(self, event: Value | VariableFailed) -> None:
        """Set the value, or the error of the call that failed."""
        if isinstance(event, VariableFailed):
            self.text.end(event.error)
            self.value.set_exception(event.error)
            return
        if not self._has_parts and isinstance(event.value, str):
            self.add(event.value, event.facts.get("reasoning_content", ""))
        self.text.end()
        self.value.set_result(event)


def settled(value: Any) -> Result:
    """A result that is known."""
    made = Result()
    made.settle(Value("", value, {}))
    return made


def item_of(listed: Result, index: int) -> Result:
    """The result of one item of a list."""

    def part(event: Value) -> Value | VariableFailed:
        item = event.value[index] if index < len(event.value) else LOST
        if item is LOST:
            return VariableFailed("", Cancelled("this part of a graph failed"))
        items = event.facts.get("items")
        facts = {**event.facts, **((items[index] if items else None) or {})}
        return Value(event.variable, item, facts)

    return _part_of(listed, part)


def rows_of(embedded: Result, start: int, end: int) -> Result:
    """The result of embedding some of the texts."""

    def part(event: Value) -> Value:
        some = Vectors.from_json(event.value)[start:end]
        return Value(event.variable, {**event.value, **some.to_json()}, event.facts)

    return _part_of(embedded, part)


def _part_of(whole: Result, part: Callable[[Value], Value | VariableFailed]) -> Result:
    """The result of a part. It fails with the error of the whole."""
    made = Result()

    def settle(done: Future[Value]) -> None:
        error = error_of(done)
        made.settle(part(done.result()) if error is None else VariableFailed("", error))

    whole.value.add_done_callback(settle)
    return made
