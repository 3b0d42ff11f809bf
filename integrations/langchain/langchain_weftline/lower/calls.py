"""The steps around a model's call: prompt templates, the models themselves, and output parsers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.callbacks import CallbackManager
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableGenerator

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lower.graph import CallOptions, Draft
from langchain_weftline.lower.parsers import lowered_parser, parsed_shape, reads_tools
from langchain_weftline.lower.prompts import (
    calls_user_code,
    item_for,
    messages_as_turns,
    render,
    text_of,
)
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.steps import Fetch, Handler, Lowerer, Mode, Step, StepRun, Steps
from langchain_weftline.lower.symbols import (
    UNKNOWN,
    AnswerMessage,
    CannotCompile,
    Local,
    Prompt,
    PromptMessage,
    Ref,
    Slot,
    Text,
    Unknown,
    has_unknown,
    is_symbolic,
    string_pieces,
)
from langchain_weftline.model.sampling import call_options
from langchain_weftline.trace.audience import hears_models
from weftline.adapters import Server

_NO_TOOLS = "it reads tool calls, and its model has no tools"


@dataclass(frozen=True, slots=True)
class Guard:
    """A call on a side of a branch is made only if the variable `on` meets all of `when`.

    `branch` is the variable of the branch, and `side` is the number of its side.
    """

    branch: str
    side: int
    on: str
    when: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model of the chain: its input, its configuration and its options.

    The call is made only if all `guards` hold.
    """

    model: ChatWeftline
    value: Any
    config: RunnableConfig
    options: Mapping[str, Any]
    guards: tuple[Guard, ...] = ()


def is_heard(asked: Asked) -> bool:
    """Whether a callback wants to hear of this call."""
    callbacks = asked.config.get("callbacks"), asked.model.callbacks, asked.model.verbose
    handlers = CallbackManager.configure(*callbacks).handlers
    return hears_models(handlers)


def _is_refusal_check(function: Any) -> bool:
    """Whether a step is the check of langchain-openai 1.7.4 and later, whose name is private
    there."""
    place = (getattr(function, "__module__", ""), getattr(function, "__qualname__", ""))
    return place == ("langchain_openai.chat_models.base", "_check_refusal")


@dataclass(frozen=True, slots=True)
class CallsState:
    """What a lowering had found."""

    drafts: list[Draft]
    server: Server | None
    models: int
    unknown: int
    names: set[str]


class Calls:
    """Lowers prompts, models and parsers, and collects the calls that they make.

    `drafts` are the calls that are not submitted yet, and `server` is the server of all of them.
    `asked` maps a variable to the model that makes it. `models` are all models that were lowered,
    and `templates` all prompt templates.
    """

    def __init__(self, lowering: Lowerer, mint: Callable[[], str], searches: Searches) -> None:
        self._lowering = lowering
        self._mint = mint
        self._searches = searches
        self.drafts: list[Draft] = []
        self.server: Server | None = None
        self.asked: dict[str, Asked] = {}
        self.models: list[ChatWeftline] = []
        self.templates: list[Step] = []
        self.unknown = 0  # calls whose prompts are not known before the run
        self.asks_for_class = False  # an answer must be an object of a class
        self._names: set[str] = set()
        # Rendered prompts with the places where their parts meet, by the id of the prompt value.
        # The prompt value is kept, so that no other object gets its id.
        self._seams: dict[int, tuple[PromptValue, Prompt]] = {}

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {ChatWeftline: self.model, RunnableGenerator: self._generator}

    def _generator(self, step: Step, value: Any) -> Steps:
        """A generator of the client's, unless it is the check that ChatOpenAI's structured output
        makes for refusals. The server's messages hold none: `refusal` is always null.
        """
        function = getattr(step.runnable, "_transform", None)
        if not isinstance(value, AnswerMessage) or not _is_refusal_check(function):
            reason = "it is a generator of the client"
            return (yield from self._lowering.run(step, value, reason))
        self._lowering.note(step, "the server's messages hold no refusal", in_server=True)
        return value

    def guard(self, variable: str, guard: Guard) -> None:
        """The call that makes `variable` is on a side of a branch."""
        asked = self.asked[variable]
        self.asked[variable] = replace(asked, guards=(guard, *asked.guards))

    def state(self) -> CallsState:
        drafts, names = list(self.drafts), set(self._names)
        return CallsState(drafts, self.server, len(self.models), self.unknown, names)

    def restore(self, state: CallsState) -> None:
        """Forget the calls that were lowered since `state`."""
        self.drafts, self.server, self._names = state.drafts, state.server, state.names
        self.unknown = state.unknown
        del self.models[state.models :]

    def parser(self, step: Step, value: Any) -> Steps:
        """An output parser that has a transform."""
        parser = step.runnable
        if not is_symbolic(value):
            run = self._lowering.run(step, value, "it parses the client's value", is_quick=True)
            return (yield from run)
        spec, make = lowered_parser(parser)
        if isinstance(value, AnswerMessage) and value.calls_tools != reads_tools(spec):
            raise CannotCompile(parser, "its model calls tools" if value.calls_tools else _NO_TOOLS)
        text = value.text if isinstance(value, AnswerMessage) else value
        if spec is None and isinstance(text, (Ref, Text)):
            string_pieces(text, parser)
            return text
        if spec is None or not isinstance(text, Ref) or not text.is_text:
            raise CannotCompile(parser, "its input is not the answer of a model")
        after = "" if make is None else ", and the client makes an object of it"
        self._lowering.note(step, f"transform {spec['op']!r}{after}", in_server=True)
        data = text.then(spec)
        return replace(data, make=make, shape=parsed_shape(parser, data.transforms))

    def template(self, step: Step, value: Any) -> Steps:
        self.templates.append(step)
        template = step.runnable
        if not is_symbolic(value):
            run = self._lowering.run(step, value, "the client has its values", is_quick=True)
            made = yield from run
            if isinstance(made, PromptValue):
                self._remember_seams(template, value, made)
            return made
        if isinstance(value, Ref) and not value.is_text:
            value = yield from self._lowering.opened(value)
        names = template.input_variables
        is_lone = not isinstance(value, dict) and len(names) == 1
        values = {names[0]: value} if is_lone else value
        if isinstance(value, Local):
            values = {name: value.item(name, item_for(template, name)) for name in names}
        if isinstance(values, Unknown):
            values = {name: values[name] for name in (*names, *values)}
        elif not isinstance(values, dict) or not set(names) <= values.keys():
            # Let LangChain raise its own error, whose message has only names of variables and
            # types.
            blank = dict.fromkeys(values, "") if isinstance(values, dict) else ""
            yield StepRun(template, blank, step.config, is_quick=True)
        if self._lowering.mode is not Mode.RUN and calls_user_code(template):
            return (yield from self._lowering.run(step, value, "it calls functions of the client"))
        return replace(render(template, values), source=(template, values))

    def _remember_seams(
        self, template: BasePromptTemplate[Any], value: Any, made: PromptValue
    ) -> None:
        """Note where the template's parts meet in `made`, so that the server can share prefixes."""
        if calls_user_code(template):
            return  # LangChain calls it once, and so do we
        values = value if isinstance(value, dict) else {template.input_variables[0]: value}
        try:
            prompt = render(template, values)
            plain = messages_as_turns(made.to_messages(), template)
        except CannotCompile:
            return  # the prompt goes as the text that LangChain made
        if text_of(prompt.turns) == text_of(plain):
            self._seams[id(made)] = (made, prompt)

    def model(self, step: Step, value: Any) -> Steps:
        model: ChatWeftline = step.runnable
        self.models.append(model)
        if isinstance(value, Local):
            value = yield Fetch(value)  # it may be a text, messages, or a prompt
        options = call_options(model, step.options)
        self.asks_for_class |= options.form is not None and options.form.kind is not None
        if self._lowering.mode is Mode.AHEAD_OF_STREAM:
            if options.toolbox is not None:
                raise CannotCompile(model, "calls of tools are streamed as they come")
            if options.form is not None:
                raise CannotCompile(model, "an answer with a schema is streamed as it comes")
        if has_unknown(value):
            return self._unknown_call(step, options)
        prompt = self._prompt(value, model)
        if not prompt.is_known:
            return self._unknown_call(step, options)
        if prompt.has_half_characters:
            raise CannotCompile(model, "its prompt holds half of a surrogate pair")
        server = model.server
        if self.server not in (None, server):
            raise CannotCompile(model, "another model of the chain has another server")
        if self._searches.server is not None and self._searches.server.place != server.place:
            raise CannotCompile(model, "a store of the chain has another server")
        self.server = server
        name = self._call_name(step.path, prompt, model.name)
        draft = Draft(name, prompt.turns, self._mint(), options)
        self.drafts.append(draft)
        self.asked[draft.var] = Asked(model, value, step.config, step.options)
        self._lowering.note(step, f"call {name!r}", in_server=True)
        return AnswerMessage(draft.var, options.toolbox is not None, options.form)

    def _unknown_call(self, step: Step, options: CallOptions) -> Any:
        """A call whose prompt depends on a step of the client."""
        self.unknown += 1
        if self._lowering.mode.is_ahead:
            self._lowering.note(step, "its prompt is known only in the run")
            return UNKNOWN
        self._lowering.note(step, "a call, on a prompt of the client's values", in_server=True)
        return AnswerMessage(self._mint(), options.toolbox is not None, options.form)

    def _prompt(self, value: Any, model: ChatWeftline) -> Prompt:
        if isinstance(value, Prompt):
            return value
        if isinstance(value, PromptValue):
            _, seams = self._seams.get(id(value), (None, None))
            return seams or Prompt(messages_as_turns(value.to_messages(), model))
        if isinstance(value, (list, tuple)):
            return Prompt(messages_as_turns(list(value), model))
        return Prompt((PromptMessage("user", (Slot("text", string_pieces(value, model)),)),))

    def _call_name(self, path: tuple[str, ...], prompt: Prompt, model: str | None) -> str:
        """The call's name in the graph: its place in the chain, and the template's name."""
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
