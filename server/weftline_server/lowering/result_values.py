"""An engine's results become values: token log probabilities, transforms, tool calls."""

from __future__ import annotations

import json
import time

from weftline.contract import transforms
from weftline.contract.errors import WeftlineError
from weftline.contract.protocol import Call, Message, Placeholder, Segment
from weftline_engine import api
from weftline_engine.api.record import short_record
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.prompt.answer_parser import AnswerParser, parser_of
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.thinking_block import CLOSE_BLOCK, OPEN_BLOCK, Thinking
from weftline_server.prompt.tool_blocks import BlockParser
from weftline_server.prompt.tool_format import (
    behind_thoughts,
    constraint,
    for_engine,
    holds_beginning,
    thinks_first,
)
from weftline_server.session.task import TokenLogprob


def token_logprobs(part: api.Part, prompter: Prompter) -> tuple[TokenLogprob, ...]:
    """The log probabilities of a part's tokens; special tokens are left out, as in its text."""
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


@short_record
class Transformed:
    """The value that an output's transforms made, or their failure, and the seconds they took.

    `reason` says why a step ended, where its engine does not.
    """

    value: object
    error: WeftlineError | None = None
    seconds: float = 0.0
    reason: api.FinishReason | None = None


def reader_of(body: PromptBody, key: str, prompter: Prompter) -> AnswerParser:
    """What reads an output that may call tools.

    `key` identifies the output, so that the ids of its tool calls are the same each time.
    """
    thinking = thinking_of(body.call, body.output, prompter)
    if body.blocks is not None:
        return AnswerParser(thinking, BlockParser(body.blocks, key))
    # An endpoint's own calls are as many as it has made, unless the client wants one.
    limited = not prompter.description.takes_messages or body.call.parallel_tool_calls is False
    return parser_of(body.call, key, prompter.tool_format, thinking, limited=limited)


def thinking_of(call: Call, output: Placeholder, prompter: Prompter) -> Thinking:
    """How an output thinks.

    A prompt of text has no template that could ask for thoughts. A constraint that holds from the
    first token leaves no room for thoughts, even behind a mark that the template has written,
    unless the client asks for them. An output that continues a message goes on with the thoughts
    that the message has begun.
    """
    if not any(isinstance(item, Message) for item in call.prompt):
        return Thinking.NONE
    thinking = prompter.thinking(call.chat_template_kwargs or {})
    if thinking is not Thinking.NONE and (begun := _begun(call, output)):
        _, opened, rest = begun.rpartition(OPEN_BLOCK)
        return Thinking.OPEN if opened and CLOSE_BLOCK not in rest else Thinking.NONE
    wish = None if output.sampling is None else output.sampling.constraint
    if thinking is Thinking.OPEN and holds_beginning(call, wish):
        return Thinking.OPEN if thinks_before(call, prompter) else Thinking.MARKED
    return thinking


def constraint_of(call: Call, output: Placeholder, prompter: Prompter) -> str | None:
    """The engine's constraint for an output, as JSON text. It holds from the first token, or behind
    the thoughts that the client has asked for."""
    wish = None if output.sampling is None else output.sampling.constraint
    made = constraint(call, wish, prompter.tool_format)
    if made is None or not holds_beginning(call, wish) or not thinks_before(call, prompter):
        return made
    thinking = thinking_of(call, output, prompter)
    if thinking is Thinking.NONE:
        return made
    begin = OPEN_BLOCK if thinking is Thinking.MARKED else ""
    return behind_thoughts(made, begin, CLOSE_BLOCK)


def constraint_on_text(output: Placeholder) -> str | None:
    """The client's own constraint on an output, as JSON text, for an engine that takes tools."""
    wish = None if output.sampling is None else output.sampling.constraint
    return None if wish is None else json.dumps(for_engine(wish))


def thinks_before(call: Call, prompter: Prompter) -> bool:
    """Whether thoughts come before a form. An engine of structural tags can leave them free."""
    can = api.Constraint.STRUCTURAL_TAG in prompter.description.constraints
    return can and prompter.has_blocks and thinks_first(call)


def _begun(call: Call, output: Placeholder) -> str:
    """The beginning of the message that an output continues, as far as the request has it."""
    values = {one.name: one.value for one in call.placeholders}
    for item in call.prompt:
        if isinstance(item, Message) and item.content[-1:] == (Segment(output=output.name),):
            texts = (one.text or values.get(one.input or "") for one in item.content[:-1])
            return "".join(text for text in texts if isinstance(text, str))
    return ""


def transformed(body: PromptBody, value: object) -> Transformed:
    """Apply an output's transforms to a small `value`."""
    if not body.output.transforms:
        return Transformed(value)
    began = time.perf_counter()
    error: WeftlineError | None = None
    try:
        value = transforms.run(body.output.transforms, value)
    except WeftlineError as failure:
        value, error = None, failure
    return Transformed(value, error, time.perf_counter() - began)
