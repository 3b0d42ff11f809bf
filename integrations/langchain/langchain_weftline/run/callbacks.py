"""Tells callbacks of the calls that the server runs for a compiled chain.

For callbacks a call starts when its prompt is known, and ends when its value is known. Callbacks
get what a plain model would give them: the messages, the parameters, and the result with its usage
or the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManager,
    CallbackManager,
)
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from langchain_weftline.lower.calls import Asked, Guard
from langchain_weftline.lower.graph import (
    Constant,
    Draft,
    Listed,
    Mapped,
    Tree,
    tree_of,
    variables_of,
)
from langchain_weftline.lower.program import Event, Lost, settle
from langchain_weftline.lower.symbols import PromptMessage, Text, is_symbolic
from langchain_weftline.model.answers import result_of, run_id_of
from langchain_weftline.model.failures import own_failures
from langchain_weftline.model.sampling import call_options
from langchain_weftline.trace.audience import hears_models
from weftline.errors import TransformFailed
from weftline.predicates import holds
from weftline.watching import Failed, Value

Known = Mapping[str, Event]


@dataclass(frozen=True, slots=True)
class Start:
    """The call that makes `variable` starts with these messages."""

    variable: str
    messages: list[BaseMessage]


@dataclass(frozen=True, slots=True)
class End:
    """The call that makes `variable` has ended, with a result or an error."""

    variable: str
    result: LLMResult | None = None
    error: BaseException | None = None


class Telling:
    """The calls of one run that callbacks are told of. `due` decides, and `tell` calls them."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._prompts: dict[str, Tree] = {}
        self._waiting: list[str] = []
        self._managers: dict[str, Any] = {}  # of the calls that have started

    def add(self, drafts: Sequence[Draft], asked: Mapping[str, Asked]) -> tuple[str, ...]:
        """Note submitted calls. Returns the variables of those that callbacks are told of."""
        heard = tuple(draft.var for draft in drafts if _is_heard(asked[draft.var]))
        self._asked |= {name: asked[name] for name in heard}
        turns = {draft.var: draft.turns for draft in drafts}
        self._prompts |= {name: _prompt(asked[name].value, turns[name]) for name in heard}
        self._waiting += heard
        return heard

    def reads(self) -> tuple[str, ...]:
        """The variables in the prompts of waiting calls."""
        trees = (self._prompts[name] for name in self._waiting)
        prompts = [name for tree in trees for name in variables_of(tree)]
        guards = [guard.on for name in self._waiting for guard in self._asked[name].guards]
        return tuple(dict.fromkeys([*prompts, *guards]))

    def due(self, known: Known) -> Iterator[Start | End]:
        """The starts and ends since the last call of `due`, in the order of the calls."""
        while True:
            before = len(self._waiting), len(self._managers)
            for name in [name for name in self._managers if name in known]:
                yield self._end(name, known[name])
            for name in list(self._waiting):
                is_made = _holds(self._asked[name].guards, known)
                prompt = settle(self._prompts[name], known)
                if isinstance(known.get(name), Lost):  # an object that it reads is not valid
                    is_made = False
                if is_made is False:  # it is on a side that was not taken
                    self._waiting.remove(name)
                if not is_made or prompt is None:
                    continue
                self._waiting.remove(name)
                if prompt.error is None:
                    made = self._asked[name].model._convert_input(prompt.value)
                    yield Start(name, made.to_messages())
            if before == (len(self._waiting), len(self._managers)):
                return

    def _end(self, name: str, event: Event) -> End:
        asked = self._asked[name]
        try:
            with own_failures(Constant(None)):
                if isinstance(event, (Failed, Lost)):
                    raise event.error
                form = call_options(asked.model, asked.options).form
                made = result_of(event, form)
        except Exception as error:
            return End(name, error=error)
        return End(name, LLMResult(generations=[[*made.generations]], llm_output=made.llm_output))

    def tell(self, event: Start | End) -> None:
        """Tell callbacks, from a thread."""
        match event:
            case Start(name, messages):
                asked = self._asked[name]
                manager = CallbackManager.configure(*_configuration(asked))
                [run] = manager.on_chat_model_start(
                    asked.model._serialized, [messages], **_start(asked, name)
                )
                self._managers[name] = run
            case End(name, result, None):
                self._managers.pop(name).on_llm_end(result)
            case End(name, _, error):
                self._managers.pop(name).on_llm_error(error, response=LLMResult(generations=[[]]))

    async def atell(self, event: Start | End) -> None:
        """Tell callbacks, from a coroutine."""
        match event:
            case Start(name, messages):
                asked = self._asked[name]
                manager = AsyncCallbackManager.configure(*_configuration(asked))
                [run] = await manager.on_chat_model_start(
                    asked.model._serialized, [messages], **_start(asked, name)
                )
                self._managers[name] = run
            case End(name, result, None):
                await self._managers.pop(name).on_llm_end(result)
            case End(name, _, error):
                run = self._managers.pop(name)
                await run.on_llm_error(error, response=LLMResult(generations=[[]]))

    @property
    def has_left(self) -> bool:
        """Whether callbacks wait for the end of a call."""
        return bool(self._waiting or self._managers)

    def left(self, error: BaseException) -> list[End]:
        """The end, with `error`, of each call that has started and not ended."""
        return [End(name, error=error) for name in self._managers]


def _prompt(value: Any, turns: Sequence[PromptMessage]) -> Tree:
    """The model's input as a tree: the value that LangChain made, or the messages of the call."""
    if not is_symbolic(value):
        return Constant(value)
    return Listed(
        tuple(
            Mapped(
                (
                    ("role", Constant(turn.role)),
                    ("content", tree_of(Text(tuple(turn.pieces())))),
                    *((("name", Constant(turn.name)),) if turn.name is not None else ()),
                )
            )
            for turn in turns
        )
    )


def _holds(guards: Sequence[Guard], known: Known) -> bool | None:
    """Whether a call on a side of a branch is made. None while it is not known."""
    for guard in guards:
        event = known.get(guard.on)
        if event is None:
            return None
        if not isinstance(event, Value):
            return False
        try:
            if not all(holds(when, event.value) for when in guard.when):
                return False
        except TransformFailed:  # the branch has failed
            return False
    return True


def _is_heard(asked: Asked) -> bool:
    return hears_models(CallbackManager.configure(*_configuration(asked)).handlers)


def _configuration(asked: Asked) -> tuple[Any, ...]:
    """The arguments with which a model configures its callback manager."""
    model, config = asked.model, asked.config
    options = _options(asked)
    metadata = {**(config.get("metadata") or {}), **model._get_ls_params(**options)}
    return (
        config.get("callbacks"),
        model.callbacks,
        model.verbose,
        config.get("tags"),
        model.tags,
        metadata,
        model.metadata,
    )


def _start(asked: Asked, variable: str) -> dict[str, Any]:
    """The parameters that callbacks get at the start of a model call."""
    options = _options(asked)
    return {
        "invocation_params": asked.model._get_invocation_params(**options),
        "options": {"stop": options["stop"]},
        "name": asked.config.get("run_name"),
        "run_id": run_id_of(variable),
        "batch_size": 1,
    }


_FOR_TRACES = ("ls_structured_output_format", "structured_output_format")


def _options(asked: Asked) -> dict[str, Any]:
    kept = {name: value for name, value in asked.options.items() if name not in _FOR_TRACES}
    return {"stop": None, **kept}
