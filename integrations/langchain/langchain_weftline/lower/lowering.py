"""Lowers an LCEL chain over a concrete input to calls. Lowering does no I/O and runs no code of the
user.

A lowering is a generator. If the client must run a step or wait for a value, the generator yields a
request and is sent the result. So the same code serves `invoke`, `ainvoke` and planning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_weftline.lower.branches import Branches
from langchain_weftline.lower.calls import Calls
from langchain_weftline.lower.checks import Checks
from langchain_weftline.lower.classic import Classic
from langchain_weftline.lower.control import Control
from langchain_weftline.lower.flow import Flow
from langchain_weftline.lower.maps import Maps
from langchain_weftline.lower.parsers import has_transform
from langchain_weftline.lower.retrievers import Retrievers
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.source import place_of
from langchain_weftline.lower.steps import Fetch, Handler, Mode, Note, Noting, Step, StepRun, Steps
from langchain_weftline.lower.symbols import (
    CannotCompile,
    Local,
    Ref,
    item_of,
    name_of,
)
from langchain_weftline.model.answers import new_variable


class Lowering:
    """One lowering. `calls` and `searches` collect the calls and steps that the lowering finds.
    `note` is called for a step. With `decides` the server takes all decisions that it can take.
    """

    def __init__(
        self,
        mint: Callable[[], str] = new_variable,
        note: Noting | None = None,
        mode: Mode = Mode.RUN,
        *,
        decides: bool = True,
    ) -> None:
        self._note = note
        self.mode = mode
        self._checks = Checks()
        self.searches = Searches(self, mint)
        self.calls = Calls(self, mint, self.searches)
        self._classic = Classic(self)
        maps = Maps(self, mint, self.calls, self.searches)
        self._retrievers = Retrievers(self, self.searches, maps)
        branches = Branches(self, self._checks, mint, self.calls, self.searches, decides=decides)
        flow = Flow(self, self._checks, branches)
        # By exact class, because a subclass may override anything.
        self._handlers = {
            **flow.handlers,
            **Control(self).handlers,
            **maps.handlers,
            **branches.handlers,
            **self.calls.handlers,
            **self.searches.handlers,
        }
        self._take_options = (flow.sequence, self.calls.model)

    def step(self, step: Step, value: Any) -> Steps:
        """The output of `step` for `value`. The client runs a step that the server cannot run."""
        runnable = step.runnable
        if isinstance(runnable, DynamicRunnable):
            if self.mode is not Mode.RUN and makes_alternatives(runnable):
                return (yield from self.run(step, value, "a function makes its alternatives"))
            runnable, config = runnable.prepare(step.config)
            step = Step(runnable, config, step.path, step.options)
        if is_plain_binding(runnable):
            return (yield from self.binding(step, value))
        lower = self._handler(runnable)
        if lower is None or (step.options and lower not in self._take_options):
            return (yield from self.run(step, value, "it is not among the steps that are known"))
        try:
            return (yield from lower(step, value))
        except CannotCompile as reason:
            return (yield from self.run(step, value, reason.reason))

    def _handler(self, runnable: Any) -> Handler | None:
        handler = self._handlers.get(_class_of(runnable))
        if handler is None:
            handler = self._classic.handler(type(runnable))
        if handler is None:
            handler = self._retrievers.handler(type(runnable))
        if handler is None and has_transform(type(runnable)):
            handler = self.calls.parser
        if handler is None and isinstance(runnable, BasePromptTemplate):
            handler = self.calls.template
        return handler

    def run(
        self,
        step: Step,
        value: Any,
        reason: str,
        *,
        is_quick: bool = False,
        may_wait: bool = True,
    ) -> Steps:
        """Let the client run a step, when the values in its input are there.

        With `may_wait` the output may be a promise: a placeholder for the value to come.
        """
        self.note(step, reason)
        how = {"is_quick": is_quick, "may_wait": may_wait and not is_quick}
        return (yield StepRun(step.runnable, value, step.config, step.options, **how))

    def note(self, step: Step, why: str, *, in_server: bool = False) -> None:
        """Note where `step` runs, and why."""
        if self._note is not None:
            place = place_of(step.runnable)
            self._note(Note(step.path, name_of(step.runnable), in_server, why, place))

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what was lowered in this block, if it raises CannotCompile."""
        note, notes = self._note, list[Note]()
        calls, searches = self.calls.state(), self.searches.state()
        checks = self._checks.state()
        self._note = None if note is None else notes.append
        try:
            yield
        except CannotCompile:
            self.calls.restore(calls)
            self.searches.restore(searches)
            self._checks.restore(checks)
            raise
        finally:
            self._note = note
        if note is not None:
            for one in notes:
                note(one)

    def opened(self, value: Any) -> Steps:
        """A list or an object of the server as a list or dict of its items.

        The client fetches the value to learn its length or keys. The items stay variables.
        """
        if isinstance(value, Local):
            return (yield Fetch(value))
        if not isinstance(value, Ref) or value.is_text:
            return value
        found = yield Fetch(value)
        if type(found) is list:
            return [_known(item_of(value, key, value), item) for key, item in enumerate(found)]
        if type(found) is dict:
            return {key: _known(item_of(value, key, value), item) for key, item in found.items()}
        return found

    def binding(self, step: Step, value: Any) -> Steps:
        """A step with options and configuration bound to it."""
        bound = step.runnable
        config = merge_configs(bound.config, step.config)
        if self.mode is Mode.RUN:  # the factories make tracers, which only a run has
            config = merge_configs(config, *(make(config) for make in bound.config_factories))
        name = bound.config.get("run_name")
        path = (*step.path, name) if name else step.path
        options = {**bound.kwargs, **step.options}
        return (yield from self.step(Step(bound.bound, config, path, options), value))


def _known(item: Ref, value: Any) -> Ref:
    """An item, marked as text if the client has seen that it is a string."""
    return item.as_text() if isinstance(value, str) else item


def is_plain_binding(runnable: Any) -> bool:
    """Whether `runnable` only adds options. Retries and message histories do more than that."""
    cls = type(runnable)
    return issubclass(cls, RunnableBindingBase) and (cls.invoke, cls._merge_configs) == (
        RunnableBindingBase.invoke,
        RunnableBindingBase._merge_configs,
    )


def makes_alternatives(runnable: Any) -> bool:
    """Whether one of a configurable runnable's alternatives is a function that makes it."""
    ways = getattr(runnable, "alternatives", {}).values()
    return any(not isinstance(way, Runnable) for way in ways)


def _class_of(runnable: Any) -> type:
    """The class of `runnable`; RunnableParallel for RunnableParallel[dict[str, Any]]."""
    generic = getattr(type(runnable), "__pydantic_generic_metadata__", None) or {}
    return generic.get("origin") or type(runnable)
