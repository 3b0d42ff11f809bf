"""The steps around a model's call: prompt templates, the models themselves, and output parsers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import RunnableGenerator

from langchain_weftline.chat_models import ChatWeftline
from langchain_weftline.lower.chain_parsers import lowered_parser, parsed_shape, reads_tools
from langchain_weftline.lower.chain_steps import ChainStep, Handler, Lowerer
from langchain_weftline.lower.drafts import CallDraft, raw_calls
from langchain_weftline.lower.prompt_templates import calls_user_code, messages_as_turns, render
from langchain_weftline.lower.searches import Searches
from langchain_weftline.lower.symbols import (
    AnswerMessage,
    CannotCompile,
    HoleText,
    Prompt,
    PromptMessage,
    Ref,
    Slot,
    Unknown,
    has_unknown,
    is_symbolic,
    item_of,
    string_pieces,
)
from langchain_weftline.model.call_sampling import call_options
from weftline.errors import InvalidRequest
from weftline.kit import Server

_NO_TOOLS = "it reads tool calls, and its model has no tools"


@dataclass(frozen=True, slots=True)
class Guard:
    """A call on a side of a branch is made only if the branch takes that side.

    `branch` is the variable of the branch, and `side` is the number of its side.
    """

    branch: str
    side: int


def _is_object(value: Ref) -> bool:
    """Whether a value is likely an object, whose items a template takes by their names."""
    return value.kind is not None or value.transforms[-1:] == ({"op": "json"},)


def _is_refusal_check(function: Any) -> bool:
    """Whether a step is the check of langchain-openai 1.7.4 and later, whose name is private
    there."""
    place = (getattr(function, "__module__", ""), getattr(function, "__qualname__", ""))
    return place == ("langchain_openai.chat_models.base", "_check_refusal")


@dataclass(frozen=True, slots=True)
class CallsState:
    """What a lowering had found."""

    drafts: list[CallDraft]
    server: Server | None
    models: int
    unknown: int
    names: set[str]


class Calls:
    """Lowers prompts, models and parsers, and collects the calls that they make.

    `drafts` are the calls, and `server` is the server of all of them. `guards` has the sides of
    branches on which a call is, the outermost first, by the call's variable. `models` are all
    models that were lowered, and `templates` all prompt templates.
    """

    def __init__(self, lowering: Lowerer, mint: Callable[[], str], searches: Searches) -> None:
        self._lowering = lowering
        self._mint = mint
        self._searches = searches
        self.drafts: list[CallDraft] = []
        self.server: Server | None = None
        self.guards: dict[str, tuple[Guard, ...]] = {}
        self.models: list[ChatWeftline] = []
        self.templates: list[ChainStep] = []
        self.unknown = 0  # calls whose prompts are not known before the run
        self._names: set[str] = set()

    @property
    def handlers(self) -> Mapping[type, Handler]:
        return {ChatWeftline: self.model, RunnableGenerator: self._generator}

    def _generator(self, step: ChainStep, value: Any) -> Any:
        """A generator of the client's, unless it is the check that ChatOpenAI's structured output
        makes for refusals. The server's messages hold none: `refusal` is always null.
        """
        function = getattr(step.runnable, "_transform", None)
        if not isinstance(value, AnswerMessage) or not _is_refusal_check(function):
            return self._lowering.run(step, value, "it is a generator of the client")
        self._lowering.note(step, "the server's messages hold no refusal", in_server=True)
        return value

    def guard(self, variable: str, guard: Guard) -> None:
        """The call that makes `variable` is on a side of a branch."""
        self.guards[variable] = (guard, *self.guards.get(variable, ()))

    def state(self) -> CallsState:
        drafts, names = list(self.drafts), set(self._names)
        return CallsState(drafts, self.server, len(self.models), self.unknown, names)

    def restore(self, state: CallsState) -> None:
        """Forget the calls that were lowered since `state`."""
        self.drafts, self.server, self._names = state.drafts, state.server, state.names
        self.unknown = state.unknown
        del self.models[state.models :]

    def parser(self, step: ChainStep, value: Any) -> Any:
        """An output parser that has a transform."""
        parser = step.runnable
        if not is_symbolic(value):
            return self._lowering.run(step, value, "it parses the client's value")
        spec, kind = lowered_parser(parser)
        if isinstance(value, AnswerMessage) and value.calls_tools != reads_tools(spec):
            raise CannotCompile(parser, "its model calls tools" if value.calls_tools else _NO_TOOLS)
        text = value.text if isinstance(value, AnswerMessage) else value
        if spec is None and isinstance(text, (Ref, HoleText)):
            string_pieces(text, parser)
            return text
        if spec is None or not isinstance(text, Ref) or not text.is_text:
            raise CannotCompile(parser, "its input is not the answer of a model")
        after = "" if kind is None else ", and the client makes an object of it"
        self._lowering.note(step, f"transform {spec['op']!r}{after}", in_server=True)
        data = text.then(spec)
        return replace(data, kind=kind, shape=parsed_shape(parser, data.transforms))

    def template(self, step: ChainStep, value: Any) -> Any:
        self.templates.append(step)
        template = step.runnable
        if not is_symbolic(value):
            return self._lowering.run(step, value, "the client has its values")
        names = template.input_variables
        is_parsed = isinstance(value, Ref) and not value.is_text
        if is_parsed and (len(names) > 1 or _is_object(value)):
            value = {name: item_of(value, name, template) for name in names}
        is_lone = not isinstance(value, dict) and len(names) == 1
        values = {names[0]: value} if is_lone else value
        if isinstance(values, Unknown):
            values = {name: values[name] for name in (*names, *values)}
        elif not isinstance(values, dict) or not set(names) <= values.keys():
            raise CannotCompile(template, "LangChain raises an error for its values")
        if calls_user_code(template):
            return self._lowering.run(step, value, "it calls functions of the client")
        return render(template, values)

    def model(self, step: ChainStep, value: Any) -> Any:
        model: ChatWeftline = step.runnable
        self.models.append(model)
        options = call_options(model, step.options)
        if self._lowering.streams:
            if options.toolbox is not None:
                raise CannotCompile(model, "calls of tools are streamed as they come")
            if options.form is not None:
                raise CannotCompile(model, "an answer with a schema is streamed as it comes")
        if has_unknown(value):
            return self._unknown_call(step)
        prompt = self._prompt(value, model)
        if not prompt.is_known:
            return self._unknown_call(step)
        if not prompt.turns:
            raise CannotCompile(model, "its prompt has no messages, which the server refuses")
        if prompt.has_half_characters:
            raise CannotCompile(model, "its prompt holds half of a surrogate pair")
        server = model.server
        if self.server not in (None, server):
            raise CannotCompile(model, "another model of the chain has another server")
        if self._searches.server is not None and self._searches.server.place != server.place:
            raise CannotCompile(model, "a store of the chain has another server")
        self.server = server
        name = self._call_name(step.path, prompt, model.name)
        draft = CallDraft(name, prompt.turns, self._mint(), options)
        try:
            raw_calls([draft])
        except InvalidRequest as error:  # the server's answer to the model says the same
            raise CannotCompile(model, error.message) from error
        self.drafts.append(draft)
        self._lowering.note(step, f"call {name!r}", in_server=True)
        return AnswerMessage(draft.var, options.toolbox is not None, options.form)

    def _unknown_call(self, step: ChainStep) -> Any:
        """A call whose prompt depends on what only the run knows."""
        self.unknown += 1
        return self._lowering.unknown(step, "its prompt is known only in the run")

    def _prompt(self, value: Any, model: ChatWeftline) -> Prompt:
        if isinstance(value, Prompt):
            return value
        if isinstance(value, PromptValue):
            return Prompt(messages_as_turns(value.to_messages(), model))
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
