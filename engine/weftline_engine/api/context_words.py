"""The words in which a prompt that is too long for a context is refused."""

from __future__ import annotations

# LiteLLM and coding clients look for "maximum context length is N tokens". LangChain looks for
# "prompt is too long" in a refusal, and for the last words in a stream. They shorten the
# conversation then.
MARKS = ("maximum context length is", "prompt is too long", "exceeds the context window")


def too_long(size: int, limit: int) -> str:
    """Say that a prompt of `size` tokens leaves no room for an answer within `limit` tokens."""
    return (
        f"This model's maximum context length is {limit} tokens, at least one of them for the "
        f"answer, and the prompt is too long: it has {size} tokens, which exceeds the context "
        "window. Shorten it"
    )


def in_known_words(said: str) -> str:
    """Add the known words to what an endpoint says of a prompt that is too long."""
    lacks = any(one not in said for one in MARKS[1:])
    return f"{said}: the prompt is too long, and exceeds the context window" if lacks else said
