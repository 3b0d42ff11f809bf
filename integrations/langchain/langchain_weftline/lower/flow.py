"""The steps that move values: sequences, maps, dicts, picks and pure functions."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)

from langchain_weftline.lower.branches import Branches, ChainChoice, at_once
from langchain_weftline.lower.chain_parsers import structured
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.pure import RoutedChain, apply_pure
from langchain_weftline.lower.symbols import (
    CannotCompile,
    Ref,
    Unknown,
    has_unknown,
    is_symbolic,
    item_of,
)


class Passthroughs:
    """Lowers the steps that only move values."""

    def __init__(self, lowering: Lowerer, branches: Branches) -> None:
        self._lowering = lowering
        self._branches = branches

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {
            RunnableSequence: self.sequence,
            RunnableParallel: self._parallel,
            RunnableAssign: self._assign,
            RunnablePick: self._pick,
            RunnablePassthrough: self._passthrough,
            RunnableLambda: self._lambda,
        }

    def sequence(self, step: ChainStep, value: Any) -> Any:
        """One step after another."""
        options = step.options
        for runnable in step.runnable.steps:
            part = ChainStep(runnable, step.config, step.path, options)
            value = self._lowering.step(part, value)
            options = {}  # only the first step takes the options bound to the sequence
        return value

    def _parallel(self, step: ChainStep, value: Any) -> Any:
        parts = step.runnable.steps__.items()
        return {key: self._lowering.part(step.of(part, key), value) for key, part in parts}

    def _assign(self, step: ChainStep, value: Any) -> Any:
        value = self._lowering.opened(step, value)
        if not isinstance(value, dict):
            return self._lowering.run(step, value, "it does not get a dict")
        made = self._parallel(step.of(step.runnable.mapper), value)
        return type(value)({**value, **made}) if isinstance(value, Unknown) else {**value, **made}

    def _pick(self, step: ChainStep, value: Any) -> Any:
        keys = step.runnable.keys
        if isinstance(value, Ref):
            if isinstance(keys, str):
                return item_of(value, keys, step.runnable)
            return {key: item_of(value, key, step.runnable) for key in keys}
        if not isinstance(value, dict) or not is_symbolic(value):
            return self._lowering.run(step, value, "the client has its value")
        if isinstance(keys, str):
            return value.get(keys)
        return {key: value[key] for key in keys if key in value} or None

    def _passthrough(self, step: ChainStep, value: Any) -> Any:
        if step.runnable.func is not None or step.runnable.afunc is not None:
            self._lowering.note(step, "it calls a function of the client")
        return value

    def _lambda(self, step: ChainStep, value: Any) -> Any:
        function = getattr(step.runnable, "func", None)
        has_async = getattr(step.runnable, "afunc", None) is not None
        if not is_symbolic(value):
            chain = None if has_async or has_unknown(value) else _route(function, value)
            if chain is not None:
                self._lowering.note(
                    step, "it chooses a chain by the client's value", in_server=True
                )
                return self._lowering.step(step.of(chain), value)
            return self._lowering.run(step, value, "it is a function on the client's value")
        if isinstance(function, operator.itemgetter) and not has_async:
            if isinstance(value, (dict, list, tuple)):
                return function(value)
            items = [item_of(value, key, step.runnable) for key in function.__reduce__()[1]]
            return items[0] if len(items) == 1 else tuple(items)
        if has_async or function is None:
            raise CannotCompile(step.runnable, "it has an async function")
        if (parsed := structured(function, value)) is not None:
            why = "transform 'json', and the client makes an object of it"
            self._lowering.note(step, why, in_server=True)
            return parsed
        with self._lowering.attempt():
            made = apply_pure(function, value, self._branches.decide(step))
        if isinstance(made, RoutedChain):
            self._lowering.note(step, "it chooses a chain by the client's value", in_server=True)
            return self._lowering.step(step.of(made.runnable), value)
        if isinstance(made, ChainChoice):
            return self._branches.routed(step, value, made)
        self._lowering.note(step, "it only moves and joins values", in_server=True)
        return made


def _route(function: Any, value: Any) -> Runnable[Any, Any] | None:
    """The chain that a function returns for a value of the client, if it can be found out."""
    if not isinstance(function, FunctionType) or not _names_chain(function):
        return None
    try:
        made = apply_pure(function, value, at_once)
    except Exception:  # the client calls the function, which raises it again
        return None
    return made.runnable if isinstance(made, RoutedChain) else None


def _names_chain(function: FunctionType) -> bool:
    """Whether a name outside the function is a chain, so that the function may return it."""
    names = function.__code__.co_names
    found = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a name that is not bound yet
            continue
    return any(isinstance(one, Runnable) for one in found)
