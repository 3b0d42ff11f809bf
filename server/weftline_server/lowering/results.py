"""An engine's results become values: token log probabilities, transforms, tool calls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weftline import transforms
from weftline.errors import WeftlineError
from weftline_engine import api
from weftline_server.lowering.call import PromptBody
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.tool_format import ToolFormat
from weftline_server.prompt.tool_parser import message_of, parser_of
from weftline_server.session.task import TokenLogprob

# The transforms of a longer value take milliseconds, which the event loop does not have.
LARGE_CHARS = 1 << 15


def is_large(specs: Sequence[Mapping[str, object]], value: object) -> bool:
    """Whether the transforms of `value` should run in another thread."""
    return bool(specs) and (not isinstance(value, str) or len(value) > LARGE_CHARS)


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


@dataclass(frozen=True, slots=True)
class Transformed:
    """The value that an output's transforms made, or their failure, and the seconds they took.

    `reason` says why a step ended, where its engine does not.
    """

    value: object
    error: WeftlineError | None = None
    seconds: float = 0.0
    reason: api.FinishReason | None = None


def transformed(body: PromptBody, key: str, text: str, format: ToolFormat) -> Transformed:
    """Apply an output's transforms to its text, in any thread.

    `key` identifies the output, so that the ids of its tool calls are the same each time.
    """
    began = time.perf_counter()
    value: object = text
    error: WeftlineError | None = None
    try:
        if body.call.offered_tools:
            value = message_of(parser_of(body.call, key, format), text)
        value = transforms.run(body.output.transforms, value)
    except WeftlineError as failure:
        value, error = None, failure
    return Transformed(value, error, time.perf_counter() - began)
