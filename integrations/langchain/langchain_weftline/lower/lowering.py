"""Lowers an LCEL chain over a concrete input to the calls that can begin before LangChain runs it.

Lowering sends nothing and runs no code of the user. A value that only the run can know is UNKNOWN.
LangChain runs the chain in any case, so a call that was foreseen wrongly costs time, and no answer.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.documents import Document
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnablePick
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_weftline.lower.branches import Branches
from langchain_weftline.lower.call_steps import Calls
from langchain_weftline.lower.chain_parsers import has_transform
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Note, Noting
from langchain_weftline.lower.classic import Classic
from langchain_weftline.lower.fallbacks import Control
from langchain_weftline.lower.flow import Passthroughs
from langchain_weftline.lower.maps import Maps
from langchain_weftline.lower.prompt_templates import calls_user_code, is_plain, render
from langchain_weftline.lower.pure import apply_pure
from langchain_weftline.lower.retrievers import Retrievers
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.source import place_of
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    CannotCompile,
    Ref,
    has_unknown,
    is_symbolic,
    name_of,
)
from langchain_weftline.model.answers import new_variable

log = logging.getLogger(__name__)


class Lowering:
    """One lowering. `calls` and `searches` collect the calls and steps that the lowering finds.

    `note` is called for each step. With `streams` the models' answers are streamed.
    """

    def __init__(
        self,
        mint: Callable[[], str] = new_variable,
        note: Noting | None = None,
        *,
        streams: bool = False,
    ) -> None:
        self._note = note
        self.streams = streams
        self._is_whole = False  # whether the server must compute all of the present part
        self.searches = Searches(self, mint)
        self.calls = Calls(self, mint, self.searches)
        self._classic = Classic(self)
        maps = Maps(self, mint, self.calls, self.searches)
        self._asking_retrievers = Retrievers(self, self.searches, maps)
        branches = Branches(self, mint, self.calls, self.searches)
        flow = Passthroughs(self, branches)
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

    @property
    def compressing(self) -> Mapping[str, Any]:
        """The chain that each compressing retriever runs on each document that it finds.

        The key of a chain is the name of its retriever's run.
        """
        return self._asking_retrievers.compressing

    def plan(
        self,
        chain: Runnable[Any, Any],
        input: Any,
        config: RunnableConfig | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Lower `chain`. Returns its result, as far as that is known."""
        # The rest of a configuration is left out: it has callbacks, which a plan must not call.
        configurable = (config or {}).get("configurable", {})
        step = ChainStep(chain, {"configurable": configurable}, (), options or {})
        return self.part(step, _known_part(input))

    def step(self, step: ChainStep, value: Any) -> Any:
        """The output of `step` for `value`."""
        runnable = step.runnable
        if isinstance(runnable, DynamicRunnable):
            if makes_alternatives(runnable):
                return self.run(step, value, "a function makes its alternatives")
            runnable, config = runnable.prepare(step.config)
            step = ChainStep(runnable, config, step.path, step.options)
        if is_plain_binding(runnable):
            return self.binding(step, value)
        lower = self._handler(runnable)
        if lower is None or (step.options and lower not in self._take_options):
            return self.run(step, value, "it is not among the steps that are known")
        try:
            return lower(step, value)
        except CannotCompile as reason:
            return self.run(step, value, reason.reason)

    def part(self, step: ChainStep, value: Any) -> Any:
        """The output of a step whose failure leaves the steps beside it alone."""
        if self._is_whole:
            return self.step(step, value)
        try:
            return self.step(step, value)
        except CannotCompile:
            return UNKNOWN
        except Exception:  # the run raises the error again, and its callbacks see it there
            log.debug("a part of the chain is not sent ahead", exc_info=True)
            return UNKNOWN

    def whole(self, step: ChainStep, value: Any) -> Any:
        """The output of a step that the server computes. Raises CannotCompile where it cannot."""
        before, self._is_whole = self._is_whole, True
        try:
            return self.step(step, value)
        except CannotCompile:
            raise
        except Exception as error:  # the plain chain raises it, if it comes to this part at all
            raise CannotCompile(step.runnable, "it fails for these values") from error
        finally:
            self._is_whole = before

    def _handler(self, runnable: Any) -> Handler | None:
        handler = self._handlers.get(_class_of(runnable))
        if handler is None:
            handler = self._classic.handler(type(runnable))
        if handler is None:
            handler = self._asking_retrievers.handler(type(runnable))
        if handler is None and has_transform(type(runnable)):
            handler = self.calls.parser
        if handler is None and isinstance(runnable, BasePromptTemplate):
            handler = self.calls.template
        return handler

    def run(self, step: ChainStep, value: Any, reason: str) -> Any:
        """The output of a step that only LangChain runs; UNKNOWN if it needs the user's code."""
        is_known = not (step.options or has_unknown(value) or is_symbolic(value))
        made = _made_by(step.runnable, value) if is_known else UNKNOWN
        if made is UNKNOWN:
            return self.unknown(step, reason)
        self.note(step, reason)
        return made

    def unknown(self, step: ChainStep, reason: str) -> Any:
        """The output of a step that waits for what only the run knows."""
        self.note(step, reason)
        if self._is_whole:
            raise CannotCompile(step.runnable, "the client runs some of it")
        return UNKNOWN

    def note(self, step: ChainStep, why: str, *, in_server: bool = False) -> None:
        """Note where `step` runs, and why."""
        if self._note is not None:
            place = place_of(step.runnable)
            self._note(Note(step.path, name_of(step.runnable), in_server, why, place))

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what was lowered in this block, if it raises CannotCompile."""
        note, notes = self._note, list[Note]()
        calls, searches = self.calls.state(), self.searches.state()
        self._note = None if note is None else notes.append
        try:
            yield
        except CannotCompile:
            self.calls.restore(calls)
            self.searches.restore(searches)
            raise
        finally:
            self._note = note
        if note is not None:
            for one in notes:
                note(one)

    def opened(self, step: ChainStep, value: Any) -> Any:
        """A list or an object of the server, whose length or keys only the run knows."""
        if not isinstance(value, Ref) or value.is_text:
            return value
        return self.unknown(step, "it needs the items of a value that the server makes")

    def binding(self, step: ChainStep, value: Any) -> Any:
        """A step with options and configuration bound to it."""
        bound = step.runnable
        config = merge_configs(bound.config, step.config)
        name = bound.config.get("run_name")
        path = (*step.path, name) if name else step.path
        options = {**bound.kwargs, **step.options}
        return self.step(ChainStep(bound.bound, config, path, options), value)


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


def _known_part(value: Any) -> Any:
    """`value`, with UNKNOWN for the parts whose classes could run code when they are formatted."""
    if is_plain(value) or (type(value) is Document and is_plain(value.metadata)):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _known_part(item) for key, item in value.items()}
    if type(value) is list:
        return [_known_part(item) for item in value]
    return UNKNOWN


def _made_by(runnable: Any, value: Any) -> Any:
    """The output for a value of the client, if it can be found without calling the user's code."""
    if isinstance(runnable, BasePromptTemplate):
        return _prompt(runnable, value)
    if type(runnable) is RunnablePick and type(value) is dict:
        if isinstance(runnable.keys, str):
            return value.get(runnable.keys)
        return {key: value[key] for key in runnable.keys if key in value} or None
    is_lambda = type(runnable) is RunnableLambda and getattr(runnable, "afunc", None) is None
    function = getattr(runnable, "func", None) if is_lambda else None
    if isinstance(function, operator.itemgetter):
        return function(value)
    if function is None:
        return UNKNOWN
    try:
        return apply_pure(function, value)
    except CannotCompile:
        return UNKNOWN


def _prompt(template: BasePromptTemplate[Any], value: Any) -> Any:
    if calls_user_code(template):
        return UNKNOWN
    values = value if isinstance(value, dict) else {template.input_variables[0]: value}
    try:
        return render(template, values)
    except CannotCompile:
        return UNKNOWN
