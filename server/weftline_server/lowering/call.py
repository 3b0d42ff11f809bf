"""From what a client submitted to what an engine runs, and back: pure steps between the two."""

from __future__ import annotations

import hashlib
import time
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from weftline import transforms
from weftline.errors import InvalidRequest, MissingInput, WeftlineError
from weftline.protocol import Call, InOut, Message, Prompt, Sampling, Segment
from weftline.protocol import Placeholder as Holder
from weftline.template import check_placeholders, parse
from weftline_engine import api
from weftline_server.graph.graph import Node
from weftline_server.graph.primitive import PrimitiveId
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.render import PromptBefore, render, segments_before, value_text
from weftline_server.prompt.tool_format import ToolFormat, constraint
from weftline_server.prompt.tool_parser import message_of, parser_of
from weftline_server.session import events as ev
from weftline_server.session.call import TokenLogprob
from weftline_server.session.session import Session
from weftline_server.session.variable import VariableState

DEFAULT_MAX_TOKENS = 512


def node_of(call: Call) -> Node:
    """`call` checked and complete: template text parsed, ids given to it and to its outputs.

    Raises UnknownPlaceholder, MissingInput, or InvalidRequest for a transform that does not exist.
    """
    if isinstance(call.prompt, str):
        call = replace(call, prompt=parse(call.prompt))
    if not call.prompt:
        raise InvalidRequest(f"call {call.name!r} has an empty prompt", param="prompt")
    chat = any(isinstance(item, Message) for item in call.prompt)
    if chat and any(isinstance(item, Segment) and item.input is None for item in call.prompt):
        raise InvalidRequest(
            "among messages only an input may stand by itself, for messages", param="prompt"
        )
    if call.tools and not chat:
        raise InvalidRequest("tools go with a prompt of messages", param="tools")
    check_placeholders(tuple(call.segments()), call.placeholders)
    id = f"c_{uuid.uuid4().hex[:12]}"
    holders = []
    for holder in call.placeholders:
        for spec in holder.transforms:
            transforms.parse(spec)
        if holder.in_out is InOut.OUT and holder.semantic_var_id is None:
            holder = replace(holder, semantic_var_id=f"{id}.{holder.name}")
        elif holder.in_out is InOut.IN and holder.semantic_var_id is None and holder.value is None:
            raise MissingInput(
                f"input {holder.name!r} of call {call.name!r} has neither a value nor a variable",
                param=holder.name,
                call=call.name,
            )
        holders.append(holder)
    return Node(id, replace(call, placeholders=tuple(holders)))


def came_from(session: Session, variable: str, text: str) -> bool:
    """Whether `text` lies inside the value that `variable` has."""
    found = session.variables.get(variable)
    if found is None or found.state is not VariableState.READY:
        return False
    return text in found.text or text in value_text(found.value)


def verified(session: Session, call: Call) -> Call:
    """`call` without what it wrongly says of where its text came from: that is constant text."""

    def checked(segment: Segment) -> Segment:
        var, text = segment.from_var, segment.text
        if var is None or (text is not None and came_from(session, var, text)):
            return segment
        return replace(segment, from_var=None)

    def checked_item(item: Message | Segment) -> Message | Segment:
        if isinstance(item, Segment):
            return checked(item)
        return replace(item, content=tuple(map(checked, item.content)))

    if not isinstance(call.prompt, str) and any(s.from_var for s in call.segments()):
        # Each item keeps its type, so the prompt does.
        call = replace(call, prompt=cast(Prompt, tuple(map(checked_item, call.prompt))))
    if any(holder.from_var for holder in call.placeholders):
        holders = (
            holder
            if holder.from_var is None
            or came_from(session, holder.from_var, value_text(holder.value))
            else replace(holder, from_var=None)
            for holder in call.placeholders
        )
        call = replace(call, placeholders=tuple(holders))
    return call


def is_constant(node: Node) -> bool:
    """Whether no variable stands before the first output, so that the prompt is known at once."""
    names = {s.input for s in segments_before(node.call, node.outputs[0].name)}
    return not any(p.semantic_var_id is not None for p in node.inputs if p.name in names)


# Characters of a value whose transforms take milliseconds, which the event loop does not have.
LARGE_CHARS = 1 << 15


def is_large(specs: Sequence[Mapping[str, object]], value: object) -> bool:
    """Whether the transforms of `value` are better run in another thread."""
    return bool(specs) and (not isinstance(value, str) or len(value) > LARGE_CHARS)


@dataclass(frozen=True, slots=True)
class PartsBefore:
    """What stands before an output, still untransformed: plain data for any thread."""

    call: Call
    output: Holder
    inputs: tuple[tuple[Holder, object], ...]
    outputs: Mapping[str, str]

    @property
    def large(self) -> bool:
        return any(is_large(holder.transforms, value) for holder, value in self.inputs)

    def prompt(self) -> PromptBefore:
        """The prompt. Raises TransformFailed when a value does not suit its input's transforms."""
        texts = {holder.name: _input_text(holder, value) for holder, value in self.inputs}
        return render(self.call, self.output, {**texts, **self.outputs})


def parts_before(session: Session, node: Node, index: int) -> PartsBefore:
    """What stands before output `index`; its inputs are ready."""
    names = {s.input for s in segments_before(node.call, node.outputs[index].name)}
    inputs = tuple(
        (
            holder,
            holder.value
            if holder.semantic_var_id is None
            else session.variables[holder.semantic_var_id].value,
        )
        for holder in node.inputs
        if holder.name in names
    )
    outputs = zip(node.outputs[:index], node.writes, strict=False)
    texts = {output.name: session.variables[variable].text for output, variable in outputs}
    return PartsBefore(node.call, node.outputs[index], inputs, texts)


def known_before(session: Session, node: Node, index: int, hole: str) -> PromptBefore:
    """The prompt before output `index` as far as it is known, and `hole` where the unknown begins.

    An input whose text streams, unchanged by transforms, is known as far as it has come. One with
    much to transform is not: the work would be done again for every part that comes.
    """
    texts: dict[str, str] = {}
    names = [s.input or s.output for s in segments_before(node.call, node.outputs[index].name)]
    for holder in (h for name in names for h in node.call.placeholders if h.name == name):
        if hole in "".join(texts.values()):
            texts[holder.name] = ""  # stands behind the hole, and is never looked at
            continue
        id = holder.semantic_var_id
        variable = None if id is None else session.variables[id]
        if holder.in_out is InOut.IN and is_large(
            holder.transforms, holder.value if variable is None else variable.value
        ):
            texts[holder.name] = hole
        elif variable is None:
            texts[holder.name] = _input_text(holder, holder.value)
        elif holder.in_out is InOut.OUT:
            texts[holder.name] = variable.text
        elif variable.state is VariableState.READY:
            texts[holder.name] = _input_text(holder, variable.value)
        else:
            texts[holder.name] = (variable.text if _streams(session, holder) else "") + hole
    return render(node.call, node.outputs[index], texts)


def _streams(session: Session, holder: Holder) -> bool:
    """Whether what the producer generates is, part by part, what enters the consumer's prompt."""
    assert holder.semantic_var_id is not None
    producer = session.graph.producer.get(holder.semantic_var_id)
    if producer is None:
        return False
    outputs = session.graph.nodes[producer].outputs
    output = next(o for o in outputs if o.semantic_var_id == holder.semantic_var_id)
    if session.graph.nodes[producer].call.offered_tools:
        return False  # what is generated is text, and the value a message
    specs = (*output.transforms, *holder.transforms)
    return all(transforms.parse(spec).flow is transforms.Flow.STREAM for spec in specs)


def _input_text(holder: Holder, value: object) -> str:
    return value_text(transforms.run(holder.transforms, value))


def asked(output: Holder) -> int:
    """How many tokens an output may have as far as its client says."""
    wish = output.sampling.max_tokens if output.sampling else None
    return wish or DEFAULT_MAX_TOKENS


def sampling_params(
    call: Call, output: Holder, prompt_tokens: int, prompter: Prompter
) -> api.SamplingParams:
    """The client's wishes, the model's defaults where it has none, within the model's context."""
    description = prompter.description
    wish = output.sampling or Sampling()
    room = description.context_limit - prompt_tokens
    model = description.default_sampling
    return api.SamplingParams(
        max_tokens=min(asked(output), room),
        min_tokens=min(wish.min_tokens, room),
        temperature=_first(wish.temperature, model.get("temperature"), 1.0),
        top_p=_first(wish.top_p, model.get("top_p"), 1.0),
        top_k=int(_first(wish.top_k, model.get("top_k"), 0)),
        seed=wish.seed,
        stop=wish.stop,
        ignore_eos=wish.ignore_eos,
        min_p=_first(wish.min_p, model.get("min_p"), 0.0),
        presence_penalty=_first(wish.presence_penalty, 0.0),
        frequency_penalty=_first(wish.frequency_penalty, 0.0),
        repetition_penalty=_first(wish.repetition_penalty, model.get("repetition_penalty"), 1.0),
        logprobs=wish.logprobs,
        constraint=constraint(call, wish.constraint, prompter.tool_format),
    )


def token_logprobs(part: api.Part, prompter: Prompter) -> tuple[TokenLogprob, ...]:
    """What the engine says of a part's tokens, in words; special ones are not of the text."""
    if not part.logprobs:
        return ()
    tops = len(part.top_tokens) // len(part.tokens)
    found = []
    for index, (token, logprob) in enumerate(zip(part.tokens, part.logprobs, strict=True)):
        if token in prompter.special:
            continue
        at = slice(index * tops, (index + 1) * tops)
        best = zip(part.top_tokens[at], part.top_logprobs[at], strict=True)
        top = tuple(TokenLogprob(*prompter.token(id), one) for id, one in best)
        found.append(TokenLogprob(*prompter.token(token), logprob, top))
    return tuple(found)


# Beginnings of these lengths, in tokens, are compared between prompts.
PREFIX_TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def prefixes(tokens: tuple[int, ...] | None, salt: str) -> tuple[tuple[str, int], ...]:
    """(hash, length) of the beginnings of `tokens`: equal where the KV cache can be shared."""
    if tokens is None:
        return ()
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    found, start = [], 0
    for length in PREFIX_TOKENS:
        if length > len(tokens):
            break
        digest.update(array("q", tokens[start:length]).tobytes())
        found.append((digest.hexdigest(), length))
        start = length
    return tuple(found)


def _first(*values: float | None) -> float:
    return next(float(v) for v in values if v is not None)


def output_key(id: PrimitiveId) -> str:
    """What names an output for good, so that the ids of its tool calls are the same each time."""
    return f"{id.call}/{id.index}"


@dataclass(frozen=True, slots=True)
class Transformed:
    """What an output's transforms made of its text, or their failure, and the seconds it took."""

    value: object
    error: WeftlineError | None
    seconds: float


def transformed(node: Node, id: PrimitiveId, text: str, format: ToolFormat) -> Transformed:
    """Apply an output's transforms to its text, in any thread."""
    began = time.perf_counter()
    value: object = text
    error: WeftlineError | None = None
    try:
        if node.call.offered_tools:
            value = message_of(parser_of(node.call, output_key(id), format), text)
        value = transforms.run(node.outputs[id.index].transforms, value)
    except WeftlineError as failure:
        value, error = None, failure
    return Transformed(value, error, time.perf_counter() - began)


def finish(id: PrimitiveId, finished: api.Finished, made: Transformed) -> ev.PrimitiveFinished:
    """The end of a primitive; a transform's failure is its error."""
    return ev.PrimitiveFinished(
        now=finished.time,
        call=id.call,
        index=id.index,
        reason=finished.reason,
        usage=finished.usage,
        value=made.value,
        error=made.error,
        transform_s=made.seconds,
    )
