"""Makes a call's payload beside the event loop, or on it where that is sooner done."""

from __future__ import annotations

import asyncio

from weftline.errors import WeftlineError
from weftline_server.lowering.call import PartsBefore
from weftline_server.prompt.prompter import Payload, Prompter

# Tokenised in 0.2 ms, and rendered in as much; a thread takes longer to wake.
INLINE_CHARS = 1000


async def tokenised(prompter: Prompter, parts: PartsBefore) -> Payload:
    """The payload of a prompt. Raises what its rendering raises, as the failure of its call.

    A megabyte of text takes the tokenizer a second: that is for a thread. Whoever makes many short
    ones in a row lets the loop turn in between.
    """
    loop = asyncio.get_running_loop()
    try:
        if parts.large:
            return await loop.run_in_executor(None, lambda: prompter.payload(parts.prompt()))
        prompt = parts.prompt()
        if prompt.chars <= INLINE_CHARS or prompter.tokenizer is None:
            return prompter.payload(prompt)
        return await loop.run_in_executor(None, prompter.payload, prompt)
    except WeftlineError as error:
        error.of_call(parts.call.name)
        raise
