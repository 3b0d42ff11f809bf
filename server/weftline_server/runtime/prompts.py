"""Renders and tokenises a primitive's prompt from the values of its session's variables."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from weftline.contract import transforms
from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import InOut, Placeholder
from weftline_engine.api.record import short_record
from weftline_server.graph.primitive import Flow, Primitive
from weftline_server.lowering.bounds import is_large, is_small
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.prompt.prompter import Payload, Prompter
from weftline_server.prompt.render import PromptBefore, render, value_text
from weftline_server.runtime.known_items import known_items
from weftline_server.runtime.workers import Workers
from weftline_server.session.session import ServerSession
from weftline_server.session.variable import VariableState

# A shorter prompt is tokenised in 0.2 ms and rendered in as much; a thread takes longer to wake.
INLINE_CHARS = 1000


def body_of(primitive: Primitive) -> PromptBody:
    """The body of a primitive of kind fill or generate."""
    assert isinstance(primitive.body, PromptBody), f"{primitive.kind} has no prompt"
    return primitive.body


@short_record
class PartsBefore:
    """The parts of a prompt before their transforms: plain data that any thread can render."""

    body: PromptBody
    inputs: tuple[tuple[Placeholder, object], ...]
    outputs: Mapping[str, str]

    def values_now(self) -> dict[str, object] | None:
        """The values of the inputs after their transforms, by name; None if that may take long.

        Raises TransformFailed when a value does not suit its input's transforms.
        """
        if any(is_large(holder.transforms, value) for holder, value in self.inputs):
            return None
        return {
            holder.name: transforms.run(holder.transforms, value) for holder, value in self.inputs
        }

    def is_short(self, values: Mapping[str, object]) -> bool:
        """Whether the prompt with these values of its inputs is rendered in no time."""
        texts = [*values.values(), *self.outputs.values()]
        return len(self.body.before) <= INLINE_CHARS // 4 and is_small(texts)

    def prompt(self, values: Mapping[str, object]) -> PromptBefore:
        """The prompt with these values of its inputs, by name, after their transforms."""
        texts = {name: value_text(value) for name, value in values.items()}
        return render(self.body.call, self.body.output, {**texts, **self.outputs})


def parts_before(session: ServerSession, body: PromptBody) -> PartsBefore:
    """The parts of a prompt whose inputs are ready."""
    inputs: list[tuple[Placeholder, object]] = []
    outputs: dict[str, str] = {}
    for holder in body.holders:
        variable = holder.semantic_var_id
        if holder.in_out is InOut.OUT:
            assert variable is not None
            outputs[holder.name] = session.variables[variable].text
        else:
            value = holder.value if variable is None else session.variables[variable].value
            inputs.append((holder, value))
    return PartsBefore(body, tuple(inputs), outputs)


def known_before(session: ServerSession, primitive: Primitive, hole: str) -> PromptBefore:
    """The prompt as far as it is known, with `hole` where the unknown part begins.

    An input on a streaming edge is known up to the text that has come, and a list that the prompt
    joins up to its last item. An input with large transforms counts as unknown, because these
    transforms would run again for every part that comes.
    """
    body = body_of(primitive)
    flows = {read.variable: read.flow for read in primitive.reads}
    texts: dict[str, str] = {}
    is_known = True
    for holder in body.holders:
        if not is_known:
            texts[holder.name] = ""  # the input is behind the hole, so its value is not read
            continue
        id = holder.semantic_var_id
        variable = None if id is None else session.variables[id]
        value = holder.value if variable is None else variable.value
        if holder.in_out is InOut.IN and is_large(holder.transforms, value):
            texts[holder.name] = hole
        elif variable is None:
            texts[holder.name] = _input_text(holder, value)
        elif holder.in_out is InOut.OUT:
            texts[holder.name] = variable.text
        elif variable.state is VariableState.READY:
            texts[holder.name] = _input_text(holder, value)
        else:
            texts[holder.name] = _text_so_far(session, holder, flows[variable.id]) + hole
        is_known = not texts[holder.name].endswith(hole)
    return render(body.call, body.output, texts)


def _text_so_far(session: ServerSession, holder: Placeholder, flow: Flow) -> str:
    """The beginning of an input's text, as far as nothing that comes later changes it."""
    assert holder.semantic_var_id is not None, "a value is known at once"
    if flow is Flow.STREAM:
        return session.variables[holder.semantic_var_id].text
    if flow is not Flow.ITEMS:
        return ""
    *through, last = (*holder.transforms,) or (None,)
    items = known_items(session, holder.semantic_var_id, through)
    return transforms.joined_items(last, items) if is_small(items) else ""


def _input_text(holder: Placeholder, value: object) -> str:
    return value_text(transforms.run(holder.transforms, value))


def tokenised_now(prompter: Prompter, parts: PartsBefore) -> Payload | None:
    """The payload of a prompt, or None where that may take long. Raises as `tokenised` does.

    A caller that makes many in a row lets the event loop turn in between.
    """
    try:
        values = parts.values_now()
        if values is None or not parts.is_short(values):
            return None
        prompt = parts.prompt(values)
        return prompter.payload(prompt) if prompt.chars <= INLINE_CHARS else None
    except WeftlineError as error:
        error.of_call(parts.body.call.name)
        raise


async def tokenised(
    prompter: Prompter, parts: PartsBefore, workers: Workers, tenant: str
) -> Payload:
    """The payload of a prompt that is made in a thread, because the tokenizer takes a second for a
    megabyte of text. Raises the errors of its rendering, as the failure of its call.
    """
    try:
        values = {
            holder.name: await workers.apply(tenant, holder.transforms, value)
            for holder, value in parts.inputs
        }
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: prompter.payload(parts.prompt(values)))
    except WeftlineError as error:
        error.of_call(parts.body.call.name)
        raise
