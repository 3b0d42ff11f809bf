"""Lowers an LCEL chain over a concrete input to calls: no I/O, and no user code run here.

`lower` is a generator. What the client must run itself it yields as `Run` and is sent the result,
so that one lowering serves `invoke` and `ainvoke`.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    MarkdownListOutputParser,
    NumberedListOutputParser,
    StrOutputParser,
)
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableBranch,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)
from langchain_core.runnables.base import RunnableBindingBase, RunnableEach
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lowered import Draft, Lowered, Server, finish
from langchain_weftline.prompts import calls_user_code, messages_as_turns, render, text_of
from langchain_weftline.pure import apply_pure
from langchain_weftline.sampling import call_options
from langchain_weftline.symbols import (
    Answer,
    CannotCompile,
    Prompt,
    Ref,
    Slot,
    Spec,
    Text,
    Turn,
    is_symbolic,
    item_of,
    string_pieces,
)


@dataclass(frozen=True, slots=True)
class Run:
    """Asks the driver to run `step` on a value that the client has."""

    step: Runnable[Any, Any]
    value: Any
    config: RunnableConfig
    options: Mapping[str, Any] = field(default_factory=dict)


Steps = Generator[Run, Any, Any]


def new_variable() -> str:
    """An id that no other variable has."""
    return f"v_{uuid.uuid4().hex}"


def lower(
    chain: Runnable[Any, Any],
    value: Any,
    config: RunnableConfig,
    mint: Callable[[], str] = new_variable,
) -> Generator[Run, Any, Lowered]:
    """`chain` applied to `value`. Raises CannotCompile, and what LangChain raises for bad input."""
    lowering = _Lowering(mint)
    result = yield from lowering.step(_Step(chain, config), value)
    return finish(lowering.drafts, result, lowering.server)


@dataclass(frozen=True, slots=True)
class _Step:
    """A runnable with its configuration, what is bound to it, and where in the chain it stands."""

    runnable: Any
    config: RunnableConfig
    path: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, runnable: Any, *names: str) -> _Step:
        """A part of this step."""
        return _Step(runnable, self.config, (*self.path, *names))


class _Lowering:
    """One lowering: the calls found so far."""

    def __init__(self, mint: Callable[[], str]) -> None:
        self._mint = mint
        self.drafts: list[Draft] = []
        self.server: Server | None = None
        # Rendered prompts with their seams; the prompt value is held so that its id stays its own.
        self._seams: dict[int, tuple[PromptValue, Prompt]] = {}

    def step(self, step: _Step, value: Any) -> Steps:
        """What `step` makes of `value`."""
        runnable = step.runnable
        if isinstance(runnable, DynamicRunnable):
            runnable, config = runnable.prepare(step.config)
            step = _Step(runnable, config, step.path, step.options)
        if _is_plain_binding(runnable):
            return (yield from self._binding(step, value))
        lowered = _STEPS.get(_class_of(runnable))
        if lowered is None and isinstance(runnable, BasePromptTemplate):
            lowered = _Lowering._template
        if lowered is None or (step.options and lowered not in _TAKE_OPTIONS):
            return (yield from self._run(step, value, "it is not among the steps that can"))
        return (yield from lowered(self, step, value))

    def _run(self, step: _Step, value: Any, reason: str) -> Steps:
        """Have the client run a step that stays there."""
        if is_symbolic(value):
            raise CannotCompile(step.runnable, reason)
        return (yield Run(step.runnable, value, step.config, step.options))

    def _binding(self, step: _Step, value: Any) -> Steps:
        bound = step.runnable
        config = merge_configs(bound.config, step.config)
        config = merge_configs(config, *(make(config) for make in bound.config_factories))
        name = bound.config.get("run_name")
        path = (*step.path, name) if name else step.path
        options = {**bound.kwargs, **step.options}
        return (yield from self.step(_Step(bound.bound, config, path, options), value))

    def _sequence(self, step: _Step, value: Any) -> Steps:
        options = step.options
        for runnable in step.runnable.steps:
            part = _Step(runnable, step.config, step.path, options)
            value = yield from self.step(part, value)
            options = {}  # only the first step takes what is bound to the sequence
        return value

    def _parallel(self, step: _Step, value: Any) -> Steps:
        made = {}
        for key, runnable in step.runnable.steps__.items():
            made[key] = yield from self.step(step.of(runnable, key), value)
        return made

    def _each(self, step: _Step, value: Any) -> Steps:
        if not isinstance(value, (list, tuple)):
            reason = "how many items it has is known only in the server"
            return (yield from self._run(step, value, reason))
        *outer, name = step.path or ("map",)
        made = []
        for number, item in enumerate(value):
            path = (*outer, f"{name}[{number}]")
            made.append((yield from self.step(_Step(step.runnable.bound, step.config, path), item)))
        return made

    def _assign(self, step: _Step, value: Any) -> Steps:
        if not isinstance(value, dict):
            return (yield from self._run(step, value, "whether it gets a dict is not known here"))
        made = yield from self._parallel(step.of(step.runnable.mapper), value)
        return {**value, **made}

    def _pick(self, step: _Step, value: Any) -> Steps:
        if not isinstance(value, dict) or not is_symbolic(value):
            return (yield from self._run(step, value, "whether it gets a dict is not known here"))
        keys = step.runnable.keys
        if isinstance(keys, str):
            return value.get(keys)
        return {key: value[key] for key in keys if key in value} or None

    def _passthrough(self, step: _Step, value: Any) -> Steps:
        if step.runnable.func is None and step.runnable.afunc is None:
            return value
        return (yield from self._run(step, value, "it calls a function of the client"))

    def _branch(self, step: _Step, value: Any) -> Steps:
        for condition, runnable in step.runnable.branches:
            met = yield from self.step(step.of(condition), value)
            if is_symbolic(met):
                raise CannotCompile(step.runnable, "its condition is known only in the server")
            if met:
                return (yield from self.step(step.of(runnable), value))
        return (yield from self.step(step.of(step.runnable.default), value))

    def _lambda(self, step: _Step, value: Any) -> Steps:
        if not is_symbolic(value):
            return (yield from self._run(step, value, ""))
        function = getattr(step.runnable, "func", None)
        if isinstance(function, operator.itemgetter):
            if isinstance(value, (dict, list, tuple)):
                return function(value)
            items = [item_of(value, key, step.runnable) for key in function.__reduce__()[1]]
            return items[0] if len(items) == 1 else tuple(items)
        if function is None:
            raise CannotCompile(step.runnable, "it is an async function")
        return apply_pure(function, value)

    def _parser(self, step: _Step, value: Any) -> Steps:
        if not is_symbolic(value):
            return (yield from self._run(step, value, ""))
        parser = step.runnable
        text = value.text if isinstance(value, Answer) else value
        spec = _PARSERS[type(parser)]
        if spec is None and isinstance(text, (Ref, Text)):
            string_pieces(text, parser)
            return text
        pattern = type(parser).model_fields.get("pattern")
        if pattern is not None and parser.pattern != pattern.default:
            raise CannotCompile(parser, "it has a pattern of its own")
        if spec is None or not isinstance(text, Ref) or not text.is_text:
            raise CannotCompile(parser, "it parses what is no answer of a model")
        return text.then(spec)

    def _template(self, step: _Step, value: Any) -> Steps:
        template = step.runnable
        if not is_symbolic(value):
            made = yield from self._run(step, value, "")
            self._remember_seams(template, value, made)
            return made
        if isinstance(value, Ref) and not value.is_text:
            raise CannotCompile(template, "whether it gets a dict is not known here")
        names = template.input_variables
        is_lone = not isinstance(value, dict) and len(names) == 1
        values = {names[0]: value} if is_lone else value
        if not isinstance(values, dict) or not set(names) <= values.keys():
            # LangChain's own complaint, which tells of names and types alone.
            blank = dict.fromkeys(values, "") if isinstance(values, dict) else ""
            yield Run(template, blank, step.config)
        return render(template, values)

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

    def _model(self, step: _Step, value: Any) -> Steps:
        model: ChatWeftline = step.runnable
        try:
            prompt = self._prompt(value, model)
            options = call_options(model, step.options)
            server = Server(model.server_url, model.openai_api_key)
            if self.server not in (None, server):
                raise CannotCompile(model, "another model of the chain has another server")
        except CannotCompile:
            if is_symbolic(value):
                raise
            return (yield Run(model, value, step.config, step.options))
        self.server = server
        name = self._call_name(step.path, prompt, model.name)
        draft = Draft(name, prompt.turns, self._mint(), options.sampling, options.model)
        self.drafts.append(draft)
        return Answer(draft.var)

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
        taken = {draft.name for draft in self.drafts}
        number, name = 1, base
        while name in taken:
            number += 1
            name = f"{base} {number}"
        return name


def _is_plain_binding(runnable: Any) -> bool:
    """Whether `runnable` only adds options; retries and message histories do more than that."""
    cls = type(runnable)
    return issubclass(cls, RunnableBindingBase) and (cls.invoke, cls._merge_configs) == (
        RunnableBindingBase.invoke,
        RunnableBindingBase._merge_configs,
    )


def _class_of(runnable: Any) -> type:
    """The class of `runnable`; RunnableParallel for RunnableParallel[dict[str, Any]]."""
    generic = getattr(type(runnable), "__pydantic_generic_metadata__", None) or {}
    return generic.get("origin") or type(runnable)


# By exact class: a subclass may do anything.
_PARSERS: Mapping[type, Spec | None] = MappingProxyType(
    {
        StrOutputParser: None,
        JsonOutputParser: {"op": "json"},
        CommaSeparatedListOutputParser: {"op": "comma_list"},
        NumberedListOutputParser: {"op": "numbered_list"},
        MarkdownListOutputParser: {"op": "markdown_list"},
    }
)
_STEPS: Mapping[type, Callable[[_Lowering, _Step, Any], Steps]] = MappingProxyType(
    {
        RunnableSequence: _Lowering._sequence,
        RunnableParallel: _Lowering._parallel,
        RunnableEach: _Lowering._each,
        RunnableAssign: _Lowering._assign,
        RunnablePick: _Lowering._pick,
        RunnablePassthrough: _Lowering._passthrough,
        RunnableBranch: _Lowering._branch,
        RunnableLambda: _Lowering._lambda,
        ChatWeftline: _Lowering._model,
        **dict.fromkeys(_PARSERS, _Lowering._parser),
    }
)
_TAKE_OPTIONS = (_Lowering._sequence, _Lowering._model)
