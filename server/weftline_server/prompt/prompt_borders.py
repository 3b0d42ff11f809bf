"""Where other prompts are likely to part from a prompt: before its turns, where a template's text
meets an input's, and at blank lines.

Documents stand between blank lines in most templates. This module is pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from weftline_server.prompt.render import PromptBefore

# Borders of a prompt that an engine is told. It keeps its model's state at far fewer.
MOST_BORDERS = 64
BLANK_LINE = "\n\n"
LEAST_CHARS = 400  # between two of them that count; about a hundred tokens
MOST_SPACE = 64  # characters of whitespace that belong to what follows
# Messages, one after another, that are not found in the prompt as they are. Then the template
# changes all, and each search reads the rest of the text.
MOST_CHANGED = 8


def borders(prompt: PromptBefore, text: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """How many tokens stand before each border of a prompt, the likeliest border first.

    `text` is the whole rendered prompt. Its tokens begin and end at these `offsets`, in characters.
    """
    ends = [end for _, end in offsets]
    found: dict[int, None] = {}
    for place in _places(prompt, text):
        # Whitespace before a border may be one token with what follows.
        near = text[max(0, place - MOST_SPACE) : place]
        before = bisect_right(ends, place - len(near) + len(near.rstrip()))
        if 0 < before < len(ends):
            found[before] = None
            if len(found) == MOST_BORDERS:
                break
    return tuple(found)


def _places(prompt: PromptBefore, text: str) -> Iterator[int]:
    """The borders in characters of the text: the last turn, the first one behind the system's, then
    the inputs and the other turns, the later ones first, and the blank lines."""
    if prompt.messages is None:
        yield from chain(reversed(prompt.seams), _spread(list(_blank_lines(text, 0))))
        return
    turns, seams, lines = list[int](), list[int](), list[int]()
    end = changed = 0
    for turn in prompt.messages:
        content = turn.content.strip()
        begin = text.find(content, end) if content and changed < MOST_CHANGED else -1
        if begin < 0:
            changed += bool(content)
            continue
        changed = 0
        if turn.role not in ("system", "developer"):
            turns.append(begin)
        cut = len(turn.content) - len(turn.content.lstrip())
        seams += (begin + seam - cut for seam in turn.seams)
        lines += _blank_lines(content, begin)
        end = begin + len(content)
    yield from turns[-1:]
    yield from turns[:1]
    yield from chain(reversed(seams), reversed(turns), _spread(lines))


def _blank_lines(text: str, begin: int) -> Iterator[int]:
    at = text.find(BLANK_LINE)
    while at >= 0:
        yield begin + at
        at = text.find(BLANK_LINE, at + LEAST_CHARS)


def _spread(places: Sequence[int]) -> Iterator[int]:
    """The last place, then those that part the others in halves, in quarters and so on: the first
    few are spread over all."""
    yield from places[-1:]
    parts = deque([(0, len(places) - 1)])
    while parts:
        begin, end = parts.popleft()
        if begin < end:
            middle = (begin + end) // 2
            yield places[middle]
            parts += ((begin, middle), (middle + 1, end))
