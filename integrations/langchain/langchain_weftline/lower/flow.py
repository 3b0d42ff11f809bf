"""The steps that move values: sequences, maps, dicts, picks and pure functions."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import (
    RunnableAssign,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)

from langchain_weftline.lower.pure import apply_pure
from langchain_weftline.lower.steps import Fork, Handler, Lowerer, Step, Steps
from langchain_weftline.lower.symbols import (
    CannotCompile,
    Unknown,
    is_symbolic,
    item_of,
)


class Flow:
    """Lowers the steps that only move values. The client runs a step that does more."""

    def __init__(self, lowering: Lowerer) -> None:
        self._lowering = lowering

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """The handler of each class."""
        return {
            RunnableSequence: self.sequence,
            RunnableParallel: self._parallel,
            RunnableAssign: self._assign,
            RunnablePick: self._pick,
            RunnablePassthrough: self._passthrough,
            RunnableLambda: self._lambda,
        }

    def sequence(self, step: Step, value: Any) -> Steps:
        """One step after another."""
        options = step.options
        for runnable in step.runnable.steps:
            part = Step(runnable, step.config, step.path, options)
            value = yield from self._lowering.step(part, value)
            options = {}  # only the first step takes the options bound to the sequence
        return value

    def _parallel(self, step: Step, value: Any) -> Steps:
        """A dict of steps on the same value."""
        steps = step.runnable.steps__
        lower = self._lowering.step
        parts = tuple(lower(step.of(part, key), value) for key, part in steps.items())
        return dict(zip(steps, (yield Fork(parts)), strict=True))

    def _assign(self, step: Step, value: Any) -> Steps:
        value = yield from self._lowering.opened(value)
        if not isinstance(value, dict):
            return (yield from self._lowering.run(step, value, "it does not get a dict"))
        made = yield from self._parallel(step.of(step.runnable.mapper), value)
        return type(value)({**value, **made}) if isinstance(value, Unknown) else {**value, **made}

    def _pick(self, step: Step, value: Any) -> Steps:
        value = yield from self._lowering.opened(value)
        if not isinstance(value, dict) or not is_symbolic(value):
            run = self._lowering.run(step, value, "the client has its value", is_quick=True)
            return (yield from run)
        keys = step.runnable.keys
        if isinstance(keys, str):
            return value.get(keys)
        return {key: value[key] for key in keys if key in value} or None

    def _passthrough(self, step: Step, value: Any) -> Steps:
        if step.runnable.func is not None or step.runnable.afunc is not None:
            # The next step waits for the function, because the function may raise to stop the run.
            reason = "it calls a function of the client"
            yield from self._lowering.run(step, value, reason, may_wait=False)
        return value

    def _lambda(self, step: Step, value: Any) -> Steps:
        function = getattr(step.runnable, "func", None)
        if not is_symbolic(value):
            reason = "it is a function on the client's value"
            return (yield from self._lowering.run(step, value, reason))
        has_async = getattr(step.runnable, "afunc", None) is not None
        if isinstance(function, operator.itemgetter) and not has_async:
            if isinstance(value, (dict, list, tuple)):
                return function(value)
            items = [item_of(value, key, step.runnable) for key in function.__reduce__()[1]]
            return items[0] if len(items) == 1 else tuple(items)
        if has_async or function is None:
            raise CannotCompile(step.runnable, "it has an async function")
        made = apply_pure(function, value)
        self._lowering.note(step, "it only moves and joins values", in_server=True)
        return made
