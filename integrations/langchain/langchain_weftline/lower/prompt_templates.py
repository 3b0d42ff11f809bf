"""Renders prompt templates over symbolic values. A message becomes constant text and slots.

The text is always exactly the text that LangChain makes. F-string templates are rendered part by
part. LangChain itself renders every other template, for which all values must be concrete. In a
mustache template marks are put around the values, so that slots can be found. Any other template
becomes one constant text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.prompts import (
    AIMessagePromptTemplate,
    BasePromptTemplate,
    ChatMessagePromptTemplate,
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
    SystemMessagePromptTemplate,
)
from langchain_core.prompts.message import BaseMessagePromptTemplate

from langchain_weftline.lower.symbols import (
    UNKNOWN_TEXT,
    AnswerMessage,
    CannotCompile,
    HoleMessage,
    Prompt,
    PromptMessage,
    Slot,
    Unknown,
    is_symbolic,
    shown,
)
from langchain_weftline.model.message_thoughts import thoughts_of

_TEMPLATE_ROLES = {
    SystemMessagePromptTemplate: "system",
    HumanMessagePromptTemplate: "user",
    AIMessagePromptTemplate: "assistant",
}
_ROLES = {SystemMessage: "system", HumanMessage: "user", AIMessage: "assistant"}
_TEMPLATES = (BasePromptTemplate, BaseMessagePromptTemplate)
# What LangChain takes of an AIMessage's additional_kwargs into a request.
_ONLY_REQUESTS = frozenset({"tool_calls", "function_call", "audio"})
_SERVER_ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})


def render(template: BasePromptTemplate[Any], values: Mapping[str, Any]) -> Prompt:
    """`template` with `values`, which may be symbolic.

    Raises CannotCompile if the text would differ from LangChain's.
    """
    if type(template) is ChatPromptTemplate:
        values = _with_partials(template, values)
        turns = [turn for part in template.messages for turn in _turns(part, values)]
        return Prompt(tuple(turns), template.name)
    return Prompt((PromptMessage("user", _text(template, values)),), template.name)


def messages_as_turns(messages: list[Any], step: object) -> tuple[PromptMessage, ...]:
    """Messages as turns of a prompt. Some messages may be answers that the server has not generated
    yet."""
    turns = []
    for message in messages:
        if isinstance(message, AnswerMessage):
            turns.append(PromptMessage("assistant", (Slot("answer", shown(message.text, step)),)))
        elif isinstance(message, HoleMessage):
            role = next(role for cls, role in _ROLES.items() if message.cls is cls)
            turns.append(PromptMessage(role, (Slot("content", message.pieces),)))
        elif is_symbolic(message):
            raise CannotCompile(step, "a message is built of a value that the server has")
        else:
            turns += [_turn(made, step) for made in convert_to_messages([message])]
    return tuple(turns)


def _turn(message: BaseMessage, step: object) -> PromptMessage:
    if not isinstance(message.content, str):
        raise CannotCompile(step, "a message has parts other than text")
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        raise CannotCompile(step, "a message calls tools")
    more = message.additional_kwargs
    if isinstance(message, AIMessage) and not _ONLY_REQUESTS.isdisjoint(more):
        raise CannotCompile(step, "a message has fields that a graph lacks")
    role = next((role for cls, role in _ROLES.items() if isinstance(message, cls)), None)
    if isinstance(message, SystemMessage):
        role = message.additional_kwargs.get("__openai_role__", "system")
    elif isinstance(message, ChatMessage):
        role = message.role
    if role not in _SERVER_ROLES or role == "tool":
        raise CannotCompile(step, f"the server takes no {message.type} message in a graph")
    content = (message.content,) if message.content else ()
    return PromptMessage(role, content, message.name or more.get("name"), thoughts_of(message))


def _turns(part: Any, values: Mapping[str, Any]) -> Iterator[PromptMessage]:
    """The turns of one part of a chat template."""
    if isinstance(part, BaseMessage):
        yield _turn(part, part)
    elif type(part) is ChatPromptTemplate:
        yield from render(part, values).turns
    elif type(part) is MessagesPlaceholder:
        yield from _placeholder(part, values)
    elif (role := role_of(part)) is not None:
        if role not in _SERVER_ROLES or role == "tool":
            raise CannotCompile(part, f"the server has no role {role!r}")
        if part.additional_kwargs:
            raise CannotCompile(part, "it has additional_kwargs")
        if isinstance(part.prompt, list):
            raise CannotCompile(part, "a message has parts other than text")
        yield PromptMessage(role, _text(part.prompt, values))
    else:
        used = _used(part, values)
        if type(part) is FewShotChatMessagePromptTemplate and part.example_selector is None:
            used = {}
        if is_symbolic(used):
            raise CannotCompile(part, "it takes only values that the client has")
        yield from messages_as_turns(part.format_messages(**used), part)


def role_of(part: Any) -> str | None:
    """The role of a message's template; None for other parts of a chat template."""
    if type(part) is ChatMessagePromptTemplate:
        return part.role
    return _TEMPLATE_ROLES.get(type(part))


def _placeholder(part: MessagesPlaceholder, values: Mapping[str, Any]) -> tuple[PromptMessage, ...]:
    messages = values.get(part.variable_name, []) if part.optional else values[part.variable_name]
    if isinstance(messages, Unknown):
        return (PromptMessage("user", (UNKNOWN_TEXT,)),)
    if not isinstance(messages, list) or (part.n_messages and is_symbolic(messages)):
        raise CannotCompile(part, "its messages are not a list that the client has")
    if part.n_messages:
        messages = convert_to_messages(messages)[-part.n_messages :]
    return messages_as_turns(messages, part)


def _text(template: BasePromptTemplate[Any], values: Mapping[str, Any]) -> tuple[str | Slot, ...]:
    """The text of a string template, with slots where it is an f-string or mustache."""
    values = _with_partials(template, values)
    if type(template) is PromptTemplate and template.template_format == "f-string":
        return _f_string(template, template.template, values)
    if type(template) is FewShotPromptTemplate and template.template_format == "f-string":
        return _f_string(template, few_shot(template, values), values)
    used = _used(template, values)
    if is_symbolic(used):
        raise CannotCompile(template, "only f-string templates take values that the server has")
    text = str(template.format(**used))
    if type(template) is PromptTemplate and template.template_format == "mustache":
        return _mustache(template, used, text)
    return (text,)


def few_shot(template: FewShotPromptTemplate, values: Mapping[str, Any]) -> str:
    """The f-string of a few-shot template: its prefix, examples and suffix."""
    examples = template.examples
    if examples is None:
        if is_symbolic(dict(values)):
            raise CannotCompile(template, "its examples are selected by a value of the server")
        assert template.example_selector is not None, "LangChain checks that there is one of both"
        examples = template.example_selector.select_examples(dict(values))
    keys = template.example_prompt.input_variables
    shots = [template.example_prompt.format(**{k: shot[k] for k in keys}) for shot in examples]
    pieces = [template.prefix, *shots, template.suffix]
    return template.example_separator.join(piece for piece in pieces if piece)


def _f_string(
    template: BasePromptTemplate[Any], text: str, values: Mapping[str, Any]
) -> tuple[str | Slot, ...]:
    content: list[str | Slot] = []
    formatter = Formatter()
    for constant, name, spec, conversion in formatter.parse(text):
        if constant:
            content.append(constant)
        if name is None:
            continue
        value = values[name]
        if not spec and not conversion:
            content.append(Slot(name, shown(value, template)))
        elif is_symbolic(value):
            raise CannotCompile(template, f"{{{name}}} has a conversion or a format")
        else:
            value = formatter.convert_field(value, conversion) if conversion else value
            content.append(Slot(name, (format(value, spec or ""),)))
    return tuple(content)


def _used(template: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    names = [*template.input_variables, *getattr(template, "optional_variables", ())]
    return {name: values[name] for name in names if name in values}


def _with_partials(
    template: BasePromptTemplate[Any], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    if not template.partial_variables:
        return values
    partials = {
        name: value() if callable(value) else value
        for name, value in template.partial_variables.items()
    }
    return {**partials, **values}


def calls_user_code(template: Any) -> bool:
    """Whether rendering `template` may run the user's code: a class, partials or a selector."""
    if not type(template).__module__.startswith("langchain_core."):
        return True
    partials = getattr(template, "partial_variables", {}).values()
    if not all(map(is_plain, partials)) or getattr(template, "example_selector", None) is not None:
        return True
    inner = [getattr(template, "prompt", None), getattr(template, "example_prompt", None)]
    parts = [*getattr(template, "messages", ()), *inner]
    return any(calls_user_code(part) for part in parts if isinstance(part, _TEMPLATES))


def text_of(turns: tuple[PromptMessage, ...]) -> list[tuple[str, str, str | None, str]]:
    """Role, text, name and thoughts of each turn, for turns without the server's values."""
    return [
        (turn.role, "".join(map(str, turn.pieces())), turn.name, turn.thoughts) for turn in turns
    ]


def is_plain(value: Any) -> bool:
    """Whether `value` holds only strings, numbers, messages, lists, tuples and dicts.

    Showing such a value runs no code of the user.
    """
    if isinstance(value, str):
        return type(value).__format__ is str.__format__
    if type(value) in (int, float, bool, type(None)) or isinstance(value, BaseMessage):
        return True
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    return type(value) is dict and all(map(is_plain, value.values()))


# Private code points: they mark the start of a value's name, the value's start, and its end.
_MARK_NAME, _MARK_VALUE, _MARK_END = "\ue5f0", "\ue5f1", "\ue5f2"


def _mustache(
    template: BasePromptTemplate[Any], values: Mapping[str, Any], text: str
) -> tuple[str | Slot, ...]:
    """`text`, which `template` made of `values`, cut into slots; one constant if that fails."""
    if any(mark in text for mark in (_MARK_NAME, _MARK_VALUE, _MARK_END)):
        return (text,)
    marked = str(template.format(**{name: _mark(value, name) for name, value in values.items()}))
    parts = tuple(_marked_parts(marked))
    same = "".join(_text_of(part) for part in parts) == text
    return parts if same else (text,)


def _mark(value: Any, path: str) -> Any:
    if isinstance(value, str):
        # An empty string hides a section of the template, so it gets no marks.
        return f"{_MARK_NAME}{path}{_MARK_VALUE}{value}{_MARK_END}" if value else value
    if type(value) is dict:
        return {key: _mark(item, f"{path}.{key}") for key, item in value.items()}
    return [_mark(item, path) for item in value] if type(value) is list else value


def _marked_parts(marked: str) -> Iterator[str | Slot]:
    """Cut a text at its marks."""
    constant, *rest = marked.split(_MARK_NAME)
    if constant:
        yield constant
    for item in rest:
        name, _, shown = item.partition(_MARK_VALUE)
        value, _, constant = shown.partition(_MARK_END)
        yield Slot(name, (value,))
        if constant:
            yield constant


def _text_of(part: str | Slot) -> str:
    return part if isinstance(part, str) else "".join(map(str, part.pieces))
