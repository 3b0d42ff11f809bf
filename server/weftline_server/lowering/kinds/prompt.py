"""Kind `generate`: a submitted call becomes a task with one such primitive for each output."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from weftline.contract import transforms
from weftline.contract.errors import InvalidRequest, MissingInput
from weftline.contract.protocol import MAX_ITEMS, Call, InOut, Message, Placeholder, Prompt, Segment
from weftline.contract.template import check_placeholders, parse
from weftline_engine import api
from weftline_engine.api.record import record
from weftline_server.graph.primitive import (
    ItemFlow,
    Primitive,
    PrimitiveBody,
    Read,
    Specs,
    Task,
    Traits,
)
from weftline_server.lowering.bounds import check_size
from weftline_server.prompt.render import value_text
from weftline_server.prompt.tool_blocks import BlockStyle
from weftline_server.session.budget import value_bytes

CHARS_PER_TOKEN = 4  # of English, under the tokenizers in use
TRAITS = Traits(has_prompt=True, has_order=False)
GUESSED_OUTPUT = 128  # tokens of an output, where the client states no limit
_VARIABLE = attrgetter("semantic_var_id")
_PLAIN_TEXT = ItemFlow()  # of every output without transforms; making one takes 2 µs


@record
class PromptBody(PrimitiveBody):
    """Output number `index` of a call, and the part of the prompt that stands before it."""

    call: Call
    index: int
    output: Placeholder
    before: tuple[Segment, ...]  # the prompt's segments before the output, messages flattened
    holders: tuple[Placeholder, ...]  # the placeholders of these segments, in their order
    is_last: bool
    # Of these inputs the text may not enter the prompt part by part: a transform needs the whole.
    whole: frozenset[str] = frozenset()
    is_read: bool = False  # the output may call tools: its text is read while it is generated

    @property
    def blocks(self) -> BlockStyle | None:
        """How blocks in the output call a tool; None if they call none."""
        return None

    @property
    def is_constant(self) -> bool:
        """Whether the prompt reads no variable, so that it can be tokenised at once."""
        return not any(map(_VARIABLE, self.holders))

    def boundaries(self) -> tuple[str, ...]:
        """16 hex digits for each segment up to the output's: the hash of the prompt to its end.

        Constants hash by their text, inputs by value or by variable. So two prompts have equal
        hashes as far as they agree, before any value is known. The last output's hashes go on to
        the end of the prompt.
        """
        found = _boundaries(self.call)
        return found if self.is_last else found[: len(self.before) + 1]

    def streams_out(self, variable: str) -> bool:
        """Whether the generated text is the value's text, part by part."""
        if self.call.offered_tools:
            return False  # the generated text becomes a message with tool calls
        return _all_stream(self.output)

    def streams_in(self, variable: str) -> bool:
        """Whether the text of an input enters the prompt unchanged, part by part."""
        return variable not in self.whole

    def joins(self, variable: str) -> Specs | None:
        """The transforms of a list that enters the prompt in one way; without any it is JSON."""
        named = [holder for holder in self.holders if holder.semantic_var_id == variable]
        first = named[0].transforms
        if any(holder.transforms != first for holder in named) or self._is_messages(named):
            return None
        return first if transforms.joins_items(first) else None

    def _is_messages(self, holders: Sequence[Placeholder]) -> bool:
        """Whether a value stands for whole messages, so that its text is read as JSON."""
        assert not isinstance(self.call.prompt, str), "template text is parsed when it arrives"
        if not any(isinstance(item, Message) for item in self.call.prompt):
            return False
        bare = {item.input for item in self.call.prompt if isinstance(item, Segment)}
        return any(holder.name in bare for holder in holders)


def _all_stream(holder: Placeholder) -> bool:
    if not holder.transforms:
        return True
    flows = (transforms.read(spec).flow for spec in holder.transforms)
    return all(flow is transforms.ValueFlow.STREAM for flow in flows)


def lower_call(call: Call, model: str, id: str | None = None) -> Task:
    """The task of a call that `model` runs: template text parsed, ids given to it and its outputs.

    Raises UnknownPlaceholder, MissingInput, and InvalidRequest for a prompt or a transform that is
    not valid.
    """
    prompt = _checked_prompt(call)
    id = id or f"c_{random.getrandbits(48):012x}"
    holders = tuple(_bound(id, call))
    return task_of(id, replace(call, model=model, prompt=prompt, placeholders=holders))


def task_of(id: str, call: Call) -> Task:
    """The task with this id of a call that is complete."""
    holders = {holder.name: holder for holder in call.placeholders}
    segments = tuple(call.segments())
    outputs = [at for at, segment in enumerate(segments) if segment.output is not None]
    primitives: list[Primitive] = []
    named: dict[str, Placeholder] = {}  # the placeholders before an output
    inputs = [holder for holder in call.placeholders if holder.in_out is InOut.IN]
    reads = dict.fromkeys([one.semantic_var_id for one in inputs if one.semantic_var_id])
    opaque = [one for one in inputs if one.transforms and not _all_stream(one)]
    whole = frozenset([one.semantic_var_id for one in opaque if one.semantic_var_id])
    start = 0
    for index, at in enumerate(outputs):
        for segment in segments[start:at]:
            if (name := segment.input or segment.output) is not None:
                named[name] = holders[name]
        is_last = index + 1 == len(outputs)
        body = PromptBody(
            call=call,
            index=index,
            output=holders[segments[at].output or ""],
            before=segments[:at],
            holders=tuple(named.values()),
            is_last=is_last,
            whole=whole,
            is_read=bool(call.offered_tools),
        )
        own = segments[start:] if is_last else segments[start:at]
        primitives.append(_primitive(id, body, _chars(own, holders), primitives))
        start = at
    constants: list[object] = [segment.text for segment in segments if segment.text is not None]
    constants += [holder.value for holder in inputs if holder.value is not None]
    constants += [tool.function.parameters for tool in call.tools]
    constants += [one.text for message in call.compacts_to for one in message.content if one.text]
    for item in (*call.prompt, *call.compacts_to):
        if isinstance(item, Message):
            constants += [made.function.arguments for made in item.tool_calls]
    return Task(
        id=id,
        name=call.name,
        resource=call.model or "",
        primitives=tuple(primitives),
        reads=tuple(reads),
        criteria=call.criteria,
        priority=call.priority,
        constant_bytes=sum([value_bytes(one) for one in constants]),
        call=call,
    )


def _chars(segments: Sequence[Segment], holders: dict[str, Placeholder]) -> int:
    """The characters that are known of `segments` when the call is submitted."""
    chars = 0
    for segment in segments:
        if segment.text is not None:
            chars += len(segment.text)
        elif segment.input is not None and isinstance(holders[segment.input].value, str):
            chars += len(holders[segment.input].value)
    return chars


def _primitive(task: str, body: PromptBody, chars: int, before: list[Primitive]) -> Primitive:
    """The primitive of an output. The primitive's work is `chars`, the text since the output
    before, and the output."""
    sampling = body.output.sampling
    asked = (sampling.max_tokens if sampling else None) or GUESSED_OUTPUT
    assert body.output.semantic_var_id is not None, "lowering gives every output a variable"
    variables = [holder.semantic_var_id for holder in body.holders]
    return Primitive(
        id=f"{task}/{body.index}",
        task=task,
        kind=api.Kind.GENERATE,
        resource=body.call.model or "",
        reads=tuple([Read(variable) for variable in dict.fromkeys(variables) if variable]),
        writes=(body.output.semantic_var_id,),
        after=(before[-1].id,) if before else (),
        work=chars // CHARS_PER_TOKEN + asked,
        output=asked,
        body=body,
        items=_items(body),
        traits=TRAITS,
    )


def _items(body: PromptBody) -> ItemFlow | None:
    """The text of an output may be a list, unless it becomes a message with tool calls."""
    if body.call.offered_tools:
        return None
    return ItemFlow(says=body.output.transforms) if body.output.transforms else _PLAIN_TEXT


def _checked_prompt(call: Call) -> Prompt:
    """The prompt with its template text parsed, checked against the placeholders."""
    if isinstance(call.prompt, str) and call.prompt.count("{{") > MAX_ITEMS:
        raise InvalidRequest(
            f"the template of call {call.name!r} has more than {MAX_ITEMS:,} placeholders",
            param="prompt",
        )
    prompt = parse(call.prompt) if isinstance(call.prompt, str) else call.prompt
    if not prompt:
        raise InvalidRequest(f"call {call.name!r} has an empty prompt", param="prompt")
    bare = [item for item in prompt if isinstance(item, Segment)]
    chat = len(bare) < len(prompt)
    segments = tuple(bare)
    if chat and any(item.input is None for item in bare):
        raise InvalidRequest(
            "a segment among messages must be an input of messages", param="prompt"
        )
    if call.tools and not chat:
        raise InvalidRequest("tools need a prompt of messages", param="tools")
    if chat:
        parts = [i.content if isinstance(i, Message) else (i,) for i in prompt]
        segments = tuple([segment for part in parts for segment in part])
    check_size(call, len(segments))
    check_placeholders(segments, call.placeholders)
    return prompt


def _bound(id: str, call: Call) -> Iterator[Placeholder]:
    """The placeholders of `call`, each output with a variable."""
    for holder in call.placeholders:
        for spec in holder.transforms:
            transforms.read(spec)  # its pattern was compiled before, in a process of its own
        if holder.in_out is InOut.OUT and holder.semantic_var_id is None:
            holder = replace(holder, semantic_var_id=f"{id}.{holder.name}")
        elif holder.in_out is InOut.IN and holder.semantic_var_id is None and holder.value is None:
            raise MissingInput(
                f"input {holder.name!r} of call {call.name!r} has neither a value nor a variable",
                param=holder.name,
                call=call.name,
            )
        yield holder


def _boundaries(call: Call) -> tuple[str, ...]:
    assert not isinstance(call.prompt, str), "template text is parsed when it arrives"
    holders = {holder.name: holder for holder in call.placeholders}
    digest = hashlib.blake2b((call.model or "default").encode(), digest_size=8)
    if call.offered_tools:  # chat templates render the tools at the beginning
        digest.update(repr(call.offered_tools).encode())
    if call.chat_template_kwargs:
        digest.update(repr(sorted(call.chat_template_kwargs.items())).encode())
    found = []
    for item in call.prompt:
        content: Sequence[Segment] = (item,) if isinstance(item, Segment) else item.content
        if isinstance(item, Message):
            digest.update(f"\x00role:{item.role}\x00".encode())
            if item.tool_calls:
                digest.update(repr(item.tool_calls).encode())
        for segment in content:
            text = segment.text
            digest.update((_identity(segment, holders) if text is None else text).encode())
            found.append(digest.hexdigest())
    return tuple(found)


def _identity(segment: Segment, holders: dict[str, Placeholder]) -> str:
    """The identity of an input or output in the hash: its variable, or else its value."""
    holder = holders[segment.input or segment.output or ""]
    if holder.semantic_var_id is not None:
        return f"\x00variable:{holder.semantic_var_id}:{holder.transforms}\x00"
    return value_text(holder.value)


# Characters of the beginning of a prompt that tell templates apart.
TEMPLATE_CHARS = 4096


def template_of(body: PromptBody) -> str:
    """The template of an output, which it shares with outputs of other calls: 16 hex digits.

    The call's name, the output's place, the tools, the words for the chat template, and the text
    before the first input. A model that thinks writes longer outputs.
    """
    first = next((one.text or "" for one in body.before), "")
    tools = [tool.function.name for tool in body.call.offered_tools]
    words = sorted((body.call.chat_template_kwargs or {}).items())
    told = repr((body.call.name, body.index, tools, words, first[:TEMPLATE_CHARS]))
    return hashlib.blake2b(told.encode(errors="replace"), digest_size=8).hexdigest()


def with_length(primitive: Primitive, tokens: int) -> Primitive:
    """The primitive with the work of an output of `tokens` tokens, in place of the bound."""
    assert isinstance(primitive.body, PromptBody), "only a prompt has an output"
    return replace(primitive, work=primitive.work - primitive.output + tokens, output=tokens)


def call_of(task: Task) -> Call:
    """The call that a task was lowered from."""
    assert task.call is not None, f"{task.name} is no call"
    return task.call


def outputs_of(task: Task) -> tuple[Placeholder, ...]:
    """The outputs of a call's task, in the order of the prompt."""
    bodies = (primitive.body for primitive in task.primitives)
    return tuple(body.output for body in bodies if isinstance(body, PromptBody))
