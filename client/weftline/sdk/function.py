"""Semantic functions: functions whose docstring is a prompt (Parrot section 4.1).

Calling a semantic function does not run it at once. The call is added to the session's graph, and
you get the variables of its outputs. The client sends the calls, in one submit, when you ask for
the first value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from weftline.contract.errors import MissingInput, UnknownPlaceholder
from weftline.contract.protocol import Criterion, Message, Prompt, Sampling, Segment
from weftline.contract.sampling import stop_strings
from weftline.contract.template import from_docstring
from weftline.sdk.current_session import current_session


@dataclass(frozen=True, slots=True)
class Input:
    """Marks a parameter as an input of the prompt.

    `transforms` are data, such as `{"op": "strip"}`. The server applies them to the value, in
    order, before the value enters the prompt.
    """

    transforms: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, init=False)
class Output:
    """Marks a parameter as an output of the prompt, which the model generates.

    `transforms` are data, such as `{"op": "json"}`. The server applies them to the generated text,
    in order. The other keywords are those of `Sampling`: max_tokens, temperature, stop and so on.
    `stop` may be one text or several. Raises InvalidRequest for a value out of range.
    """

    sampling: Sampling
    transforms: tuple[Mapping[str, Any], ...]

    def __init__(self, *, transforms: Sequence[Mapping[str, Any]] = (), **sampling: Any) -> None:
        sampling["stop"] = stop_strings(sampling.get("stop"))
        object.__setattr__(self, "sampling", Sampling(**sampling))
        object.__setattr__(self, "transforms", tuple(transforms))


@dataclass(frozen=True, slots=True)
class SemanticFunction:
    """A function whose docstring is a prompt. Make one with `semantic_function`."""

    name: str
    prompt: Prompt
    parameters: tuple[str, ...]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, Output]
    model: str | None = None
    criteria: Criterion | None = None
    doc: str = field(default="", repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a call of this function to the current session.

        Returns the variable of its output, or a tuple of variables if it has several outputs.

        An input is a value, or a variable of the session. For an output you may give a variable
        that the call is to write. Raises MissingInput for an input without a value,
        UnknownPlaceholder for an argument that is not a parameter, and RuntimeError outside of a
        session.
        """
        if len(args) > len(self.parameters):
            raise UnknownPlaceholder(
                f"{self.name} takes {len(self.parameters)} arguments, not {len(args)}"
            )
        given = dict(zip(self.parameters, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise UnknownPlaceholder(f"{self.name} got {name!r} twice", param=name)
            if name not in self.inputs and name not in self.outputs:
                raise UnknownPlaceholder(f"{self.name} has no parameter {name!r}", param=name)
            given[name] = value
        for name in self.inputs:
            if given.get(name) is None:
                raise MissingInput(f"{self.name} needs input {name!r}", param=name)
        made = current_session().add_call(self, given)
        return made[0] if len(made) == 1 else tuple(made)


@overload
def semantic_function(function: Callable[..., Any], /) -> SemanticFunction: ...


@overload
def semantic_function(
    *,
    chat: bool = False,
    system: str | None = None,
    model: str | None = None,
    criteria: Criterion | None = None,
) -> Callable[[Callable[..., Any]], SemanticFunction]: ...


def semantic_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    chat: bool = False,
    system: str | None = None,
    model: str | None = None,
    criteria: Criterion | None = None,
) -> SemanticFunction | Callable[[Callable[..., Any]], SemanticFunction]:
    """Make a semantic function of a function whose docstring is a prompt.

    The docstring has its inputs and outputs as `{{input:name}}` and `{{output:name}}`. The function
    itself is never run.

    With `chat`, the text before an output is a user's message, and the output is the assistant's
    answer. The server applies the model's chat template. Without `chat` the text goes to the model
    unchanged. `system` is the text of a system message, and implies `chat`. `model` is a served
    model; None means the default model. `criteria` says what matters to the readers of the outputs;
    None means that the server deduces it from the graph. Raises UnknownPlaceholder when docstring
    and parameters do not agree.
    """

    def make(function: Callable[..., Any]) -> SemanticFunction:
        segments = from_docstring(inspect.getdoc(function) or "")
        return _build(function, segments, chat or system is not None, system, model, criteria)

    return make if function is None else make(function)


def _marked(
    function: Callable[..., Any], inputs: dict[str, Input], outputs: dict[str, Output]
) -> tuple[str, ...]:
    """The parameters' names. Their marks replace those of `inputs` and `outputs`."""
    # eval_str: with `from __future__ import annotations`, annotations are text.
    parameters = inspect.signature(function, eval_str=True).parameters
    for name, parameter in parameters.items():
        found = name in inputs or name in outputs
        for mark in (parameter.annotation, parameter.default):
            if isinstance(mark, Output):
                outputs[name] = mark
            elif isinstance(mark, Input):
                inputs[name] = mark
        wrong = name in inputs and name in outputs
        if not found or wrong:
            which = "the other kind" if wrong else "missing"
            raise UnknownPlaceholder(
                f"parameter {name!r} of {function.__name__} is {which} in its docstring", param=name
            )
    return tuple(parameters)


def _build(
    function: Callable[..., Any],
    segments: tuple[Segment, ...],
    chat: bool,
    system: str | None,
    model: str | None,
    criteria: Criterion | None,
) -> SemanticFunction:
    name = function.__name__
    inputs = {s.input: Input() for s in segments if s.input is not None}
    outputs = {s.output: Output() for s in segments if s.output is not None}
    if not outputs:
        raise UnknownPlaceholder(
            f"the docstring of {name} has no {{{{output:…}}}}: add one", param=name
        )
    return SemanticFunction(
        name=name,
        prompt=as_chat(segments, system) if chat else segments,
        parameters=_marked(function, inputs, outputs),
        inputs=inputs,
        outputs=outputs,
        model=model,
        criteria=criteria,
        doc=inspect.getdoc(function) or "",
    )


def as_chat(segments: tuple[Segment, ...], system: str | None = None) -> tuple[Message, ...]:
    """The segments as chat messages.

    Each output is an assistant's message. The text and inputs before it are a user's message.
    """
    first = Message(role="system", content=(Segment(text=system or ""),))
    messages = [] if system is None else [first]
    said: list[Segment] = []
    for segment in segments:
        if segment.output is None:
            said.append(segment)
            continue
        if content := _stripped(said):
            messages.append(Message(role="user", content=content))
        messages.append(Message(role="assistant", content=(segment,)))
        said = []
    return tuple(messages)


def _stripped(segments: list[Segment]) -> tuple[Segment, ...]:
    """The segments of one message, without the white space at its start and end."""
    texts = [s.text for s in segments]
    if texts and texts[0] is not None:
        texts[0] = texts[0].lstrip()
    if texts and texts[-1] is not None:
        texts[-1] = texts[-1].rstrip()
    pairs = zip(segments, texts, strict=True)
    return tuple(s if s.text is None else Segment(text=t) for s, t in pairs if t != "")
