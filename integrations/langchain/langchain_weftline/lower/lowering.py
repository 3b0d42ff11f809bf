"""Lowers an LCEL chain over a concrete input to calls: no I/O, and no user code run here.

`lower` is a generator. What the client must do itself, run a step or wait for a value, it yields as
a request and is sent the result, so that one lowering serves `invoke`, `ainvoke` and planning.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase, RunnableEach
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lower import control
from langchain_weftline.lower.lowered import CallOptions, Draft
from langchain_weftline.lower.parsers import has_transform, lowered_parser, reads_tools
from langchain_weftline.lower.prompts import calls_user_code, messages_as_turns, render, text_of
from langchain_weftline.lower.pure import apply_pure
from langchain_weftline.lower.steps import Fetch, Fork, Mode, Note, Noting, Run, Step, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    Answer,
    CannotCompile,
    Prompt,
    Ref,
    Slot,
    Text,
    Turn,
    Unknown,
    has_unknown,
    is_symbolic,
    item_of,
    name_of,
    string_pieces,
)
from langchain_weftline.model.patience import Patience
from langchain_weftline.model.sampling import call_options
from weftline.adapters import Server

_NO_TOOLS = "it reads tool calls, and its model has no tools"


def new_variable() -> str:
    """An id that no other variable has."""
    return f"v_{uuid.uuid4().hex}"


class Lowering:
    """One lowering: the calls found so far that nobody has submitted yet, and their server.

    `note` is told where each step runs.
    """

    def __init__(
        self,
        mint: Callable[[], str] = new_variable,
        note: Noting | None = None,
        mode: Mode = Mode.RUN,
    ) -> None:
        self._mint = mint
        self._note = note
        self.mode = mode
        self.drafts: list[Draft] = []
        self.server: Server | None = None
        self.patience: dict[str, Patience] = {}
        self._names: set[str] = set()
        # Rendered prompts with their seams; the prompt value is held so that its id stays its own.
        self._seams: dict[int, tuple[PromptValue, Prompt]] = {}

    def step(self, step: Step, value: Any) -> Steps:
        """What `step` makes of `value`; where the server cannot run it, the client does."""
        runnable = step.runnable
        if isinstance(runnable, DynamicRunnable):
            if self.mode is not Mode.RUN and makes_alternatives(runnable):
                return (yield from self.run(step, value, "a function makes its alternatives"))
            runnable, config = runnable.prepare(step.config)
            step = Step(runnable, config, step.path, step.options)
        if is_plain_binding(runnable):
            return (yield from self.binding(step, value))
        lower = _STEPS.get(_class_of(runnable))
        if lower is None and has_transform(type(runnable)):
            lower = Lowering._parser
        if lower is None and isinstance(runnable, BasePromptTemplate):
            lower = Lowering._template
        if lower is None or (step.options and lower not in _TAKE_OPTIONS):
            return (yield from self.run(step, value, "it is not among the steps that are known"))
        try:
            return (yield from lower(self, step, value))
        except CannotCompile as reason:
            return (yield from self.run(step, value, reason.reason))

    def run(self, step: Step, value: Any, reason: str, *, is_quick: bool = False) -> Steps:
        """Have the client run a step, on the values that it waits for."""
        self.note(step, reason)
        if is_symbolic(value):
            value = yield Fetch(value)
        return (yield Run(step.runnable, value, step.config, step.options, is_quick))

    def note(self, step: Step, why: str, *, in_server: bool = False) -> None:
        """Tell whoever wants to know where `step` runs."""
        if self._note is not None:
            self._note(Note(step.path, name_of(step.runnable), in_server, why))

    def opened(self, value: Any) -> Steps:
        """A list or an object of the server as a list or dict of its items.

        The client learns how many there are, or their names; the items stay variables.
        """
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
        if self.mode is Mode.RUN:  # the factories make tracers, which watch no plan
            config = merge_configs(config, *(make(config) for make in bound.config_factories))
        name = bound.config.get("run_name")
        path = (*step.path, name) if name else step.path
        options = {**bound.kwargs, **step.options}
        return (yield from self.step(Step(bound.bound, config, path, options), value))

    def _sequence(self, step: Step, value: Any) -> Steps:
        options = step.options
        for runnable in step.runnable.steps:
            part = Step(runnable, step.config, step.path, options)
            value = yield from self.step(part, value)
            options = {}  # only the first step takes what is bound to the sequence
        return value

    def parallel(self, step: Step, value: Any) -> Steps:
        """A dict of steps on the same value."""
        steps = step.runnable.steps__
        parts = tuple(self.step(step.of(part, key), value) for key, part in steps.items())
        return dict(zip(steps, (yield Fork(parts)), strict=True))

    def _assign(self, step: Step, value: Any) -> Steps:
        value = yield from self.opened(value)
        if not isinstance(value, dict):
            return (yield from self.run(step, value, "it does not get a dict"))
        made = yield from self.parallel(step.of(step.runnable.mapper), value)
        return type(value)({**value, **made}) if isinstance(value, Unknown) else {**value, **made}

    def _pick(self, step: Step, value: Any) -> Steps:
        value = yield from self.opened(value)
        if not isinstance(value, dict) or not is_symbolic(value):
            return (yield from self.run(step, value, "the client has its value", is_quick=True))
        keys = step.runnable.keys
        if isinstance(keys, str):
            return value.get(keys)
        return {key: value[key] for key in keys if key in value} or None

    def _passthrough(self, step: Step, value: Any) -> Steps:
        if step.runnable.func is not None or step.runnable.afunc is not None:
            yield from self.run(step, value, "it calls a function of the client")
        return value

    def _lambda(self, step: Step, value: Any) -> Steps:
        function = getattr(step.runnable, "func", None)
        if not is_symbolic(value):
            return (yield from self.run(step, value, "it is a function on the client's value"))
        if isinstance(function, operator.itemgetter):
            if isinstance(value, (dict, list, tuple)):
                return function(value)
            items = [item_of(value, key, step.runnable) for key in function.__reduce__()[1]]
            return items[0] if len(items) == 1 else tuple(items)
        if function is None:
            raise CannotCompile(step.runnable, "it is an async function")
        made = apply_pure(function, value)
        self.note(step, "it only moves and joins values", in_server=True)
        return made

    def _parser(self, step: Step, value: Any) -> Steps:
        parser = step.runnable
        if not is_symbolic(value):
            return (yield from self.run(step, value, "it parses the client's value", is_quick=True))
        spec, make = lowered_parser(parser)
        if isinstance(value, Answer) and value.calls_tools != reads_tools(spec):
            raise CannotCompile(parser, "its model calls tools" if value.calls_tools else _NO_TOOLS)
        text = value.text if isinstance(value, Answer) else value
        if spec is None and isinstance(text, (Ref, Text)):
            string_pieces(text, parser)
            return text
        if spec is None or not isinstance(text, Ref) or not text.is_text:
            raise CannotCompile(parser, "it parses what is no answer of a model")
        after = "" if make is None else ", and the client makes an object of it"
        self.note(step, f"transform {spec['op']!r}{after}", in_server=True)
        return replace(text.then(spec), make=make)

    def _template(self, step: Step, value: Any) -> Steps:
        template = step.runnable
        if not is_symbolic(value):
            made = yield from self.run(step, value, "the client has its values", is_quick=True)
            if isinstance(made, PromptValue):
                self._remember_seams(template, value, made)
            return made
        if isinstance(value, Ref) and not value.is_text:
            value = yield from self.opened(value)
        names = template.input_variables
        is_lone = not isinstance(value, dict) and len(names) == 1
        values = {names[0]: value} if is_lone else value
        if isinstance(values, Unknown):
            values = {name: values[name] for name in (*names, *values)}
        elif not isinstance(values, dict) or not set(names) <= values.keys():
            # LangChain's own complaint, which tells of names and types alone.
            blank = dict.fromkeys(values, "") if isinstance(values, dict) else ""
            yield Run(template, blank, step.config, is_quick=True)
        if self.mode is not Mode.RUN and calls_user_code(template):
            return (yield from self.run(step, value, "it calls functions of the client"))
        return replace(render(template, values), source=(template, values))

    def _remember_seams(
        self, template: BasePromptTemplate[Any], value: Any, made: PromptValue
    ) -> None:
        """Keep where the template's parts meet in `made`, so that the server can share them."""
        if calls_user_code(template):
            return  # once is what LangChain does
        values = value if isinstance(value, dict) else {template.input_variables[0]: value}
        try:
            prompt = render(template, values)
            plain = messages_as_turns(made.to_messages(), template)
        except CannotCompile:
            return  # the prompt goes as the text that LangChain made
        if text_of(prompt.turns) == text_of(plain):
            self._seams[id(made)] = (made, prompt)

    def _model(self, step: Step, value: Any) -> Steps:
        model: ChatWeftline = step.runnable
        options = call_options(model, step.options)
        if options.toolbox is not None and self.mode is Mode.AHEAD_OF_STREAM:
            raise CannotCompile(model, "calls of tools are streamed as they come")
        if has_unknown(value):
            return self._unknown_call(step, options)
        prompt = self._prompt(value, model)
        if not prompt.is_known:
            return self._unknown_call(step, options)
        server = model.server
        if self.server not in (None, server):
            raise CannotCompile(model, "another model of the chain has another server")
        self.server = server
        name = self._call_name(step.path, prompt, model.name)
        draft = Draft(name, prompt.turns, self._mint(), options)
        self.drafts.append(draft)
        self.patience[draft.var] = model.patience
        self.note(step, f"call {name!r}", in_server=True)
        return Answer(draft.var, calls_tools=options.toolbox is not None)
        yield  # a generator, as all steps are

    def _unknown_call(self, step: Step, options: CallOptions) -> Any:
        """A call whose prompt the client has yet to make."""
        if self.mode.is_ahead:
            self.note(step, "its prompt is known only in the run")
            return UNKNOWN
        self.note(step, "a call, on a prompt of the client's values", in_server=True)
        return Answer(self._mint(), calls_tools=options.toolbox is not None)

    def _prompt(self, value: Any, model: ChatWeftline) -> Prompt:
        if isinstance(value, Prompt):
            return value
        if isinstance(value, PromptValue):
            _, seams = self._seams.get(id(value), (None, None))
            return seams or Prompt(messages_as_turns(value.to_messages(), model))
        if isinstance(value, (list, tuple)):
            return Prompt(messages_as_turns(list(value), model))
        return Prompt((Turn("user", (Slot("text", string_pieces(value, model)),)),))

    def _call_name(self, path: tuple[str, ...], prompt: Prompt, model: str | None) -> str:
        """A name that a reader of the graph knows: where in the chain, and which template."""
        reads = {hole.ref.var for hole in prompt.holes()}
        parts = [*path, *([prompt.name] if prompt.name else [])]
        base = ".".join(parts) or model or ("reduce" if len(reads) > 1 else "call")
        base = "".join(char if char.isprintable() else " " for char in base)[:100]
        number, name = 1, base
        while name in self._names:
            number += 1
            name = f"{base} {number}"
        self._names.add(name)
        return name


def _known(item: Ref, value: Any) -> Ref:
    """An item of which the client has seen that it is a string."""
    return item.as_text() if isinstance(value, str) else item


def is_plain_binding(runnable: Any) -> bool:
    """Whether `runnable` only adds options; retries and message histories do more than that."""
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


# By exact class: a subclass may do anything.
_STEPS: Mapping[type, Callable[[Lowering, Step, Any], Steps]] = MappingProxyType(
    {
        RunnableSequence: Lowering._sequence,
        RunnableParallel: Lowering.parallel,
        RunnableEach: control.each,
        RunnableAssign: Lowering._assign,
        RunnablePick: Lowering._pick,
        RunnablePassthrough: Lowering._passthrough,
        RunnableBranch: control.branch,
        RouterRunnable: control.router,
        RunnableWithFallbacks: control.fallbacks,
        RunnableRetry: control.retry,
        RunnableLambda: Lowering._lambda,
        ChatWeftline: Lowering._model,
    }
)
_TAKE_OPTIONS = (Lowering._sequence, Lowering._model)
