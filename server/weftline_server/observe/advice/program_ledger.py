"""What the advisor knows of one tenant: its programs, and the last prompts of each."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weftline.contract.protocol import Call
from weftline_engine.api import Usage
from weftline_server.observe.advice.difference import (
    differences,
    parting,
    same_chars,
    shared,
    tool_chars,
)
from weftline_server.observe.advice.lineage import Key, Lineage, Lineages
from weftline_server.observe.advice.program import Program, RecordedCall
from weftline_server.observe.advice.prompt import (
    Place,
    PromptTexts,
    Template,
    Variables,
    begins_of,
    places_of,
    prompt_of,
    template_of,
)

MOST_PROGRAMS = 64  # of a tenant; the least recently used leaves
# A difference counts if this many tokens of equal text stand behind it: four KV blocks.
LEAST_TOKENS = 64
# Two prompts are of one program if this share of the shorter one stands in both.
ALIKE = 0.5
# A later turn of a conversation has one of the two messages that were last before among its own
# last ones. One of the two may have moved.
MOST_SINCE = 6
END_CHARS, HEAD_CHARS = 256, 64
BEGINS_CHARS = 60
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Told:
    """A call that has ended, as the advisor is told of it. `session` is None for a session of a
    single request. `at` is when the call was queued, and `ended` when its answer was complete, in
    seconds of the server's clock."""

    call: Call
    variables: Variables
    session: str | None
    usage: Usage
    engine: str
    at: float
    ended: float


@dataclass(slots=True)
class Ledger:
    """The programs of one tenant. No value leaves it but in extracts, which readers may show."""

    programs: OrderedDict[Program, None] = field(default_factory=OrderedDict)
    lineages: Lineages = field(default_factory=Lineages)

    def note(self, told: Told) -> None:
        """Compare the prompt of a call with the one that it follows, and remember it."""
        prompt = prompt_of(told.call, told.variables)
        chars = prompt.chars
        if not chars or told.usage.prompt_tokens < LEAST_TOKENS:
            return
        template = template_of(told.call)
        before, goes_on = self._followed(told, prompt, template)
        if before is not None and before.prompt.tools == prompt.tools:
            tools = before.tools
        else:
            tools = tuple([(hash(repr(tool)), tool_chars([tool])) for tool in prompt.tools])
        rate = told.usage.prompt_tokens / (chars + sum(size for _, size in tools))
        if before is None:
            program = _program(told, prompt, is_template=template is not None)
        else:
            program = before.program
            self._compare(program, before.prompt, prompt, told, rate)
        program.engine = told.engine
        if told.usage.lost_tokens >= LEAST_TOKENS:
            program.lose_state(told.usage.lost_tokens)
        program.number += 1
        follows = None if before is None else before.number
        program.recorded.append(_recorded(told, prompt, tools, rate, (program.number, follows)))
        if before is None or not goes_on:
            before = Lineage(program, prompt, tools)
        before.tools, before.number = tools, program.number
        self.programs[program] = None
        self.programs.move_to_end(program)
        if len(self.programs) > MOST_PROGRAMS:
            self.programs.popitem(last=False)
        self.lineages.put(before, prompt, chars, _keys(told, prompt, template))

    def _followed(
        self, told: Told, prompt: PromptTexts, template: Template | None
    ) -> tuple[Lineage | None, bool]:
        """The lineage that the prompt follows, and whether the prompt goes on with it.

        A prompt that only begins as another one does is of the same program. It begins a lineage.
        """
        base = (_name(told), told.call.model)
        if template is not None:
            found = self.lineages.find(("template", *base, template))
            if found is not None:
                return found, True
        candidates: dict[Lineage, bool] = {}
        for key, goes_on in _earlier(told, prompt, base, is_template=template is not None):
            found = self.lineages.find(key)
            if found is None or found in candidates:
                continue
            if parting(found.prompt.texts, prompt.texts) == len(found.prompt.texts):
                return found, goes_on  # the prompt goes on where that one ended
            if template is None or len(prompt.texts) > len(found.prompt.texts):
                candidates[found] = goes_on
        best, most = None, 0
        for found in candidates:
            alike = shared(found.prompt, prompt, LEAST_TOKENS)
            if alike > most and alike >= ALIKE * min(found.chars, prompt.chars):
                best, most = found, alike
        return best, best is not None and candidates[best]

    def _compare(
        self, program: Program, before: PromptTexts, after: PromptTexts, told: Told, rate: float
    ) -> None:
        """Count what parts the two prompts; `rate` is in tokens a character."""
        usage = told.usage
        program.count(usage.prompt_tokens, usage.cached_tokens)
        places: list[Place] = []

        def where() -> Sequence[Place]:
            if not places:
                places.extend(places_of(told.call, told.variables))
            return places

        for found in differences(before, after, where, math.ceil(LEAST_TOKENS / rate)):
            lost = round(found.lost * rate)
            if found.cause.is_of_tools:  # a template may write a system message before its tools
                same = round(same_chars(before, after) * rate)
                lost = min(lost, same - usage.cached_tokens)
            if lost >= LEAST_TOKENS or not found.cause.is_of_tools:
                program.add(found, where(), (before, after), lost)


def _earlier(
    told: Told, prompt: PromptTexts, base: Key, *, is_template: bool
) -> Iterator[tuple[Key, bool]]:
    """The keys of prompts that this one may follow, and whether it would go on with them.

    The template itself tells its prompts apart. Only one whose history grows follows another: that
    of its session.
    """
    if told.session is not None:
        yield ("session", *base, told.session), True
    if is_template:
        return
    for text in prompt.texts[-2 : -2 - MOST_SINCE : -1]:
        yield ("end", *base, text[-END_CHARS:]), True
    yield ("head", *base, prompt.texts[0][-HEAD_CHARS:]), False


def _keys(told: Told, prompt: PromptTexts, template: Template | None) -> Iterator[Key]:
    """What a later prompt can find this one by."""
    base = (_name(told), told.call.model)
    if told.session is not None:
        yield "session", *base, told.session
    if template is not None:
        yield "template", *base, template
        return
    for text in prompt.texts[-1:] if len(prompt.texts) < 3 else prompt.texts[-2:]:
        yield "end", *base, text[-END_CHARS:]
    yield "head", *base, prompt.texts[0][-HEAD_CHARS:]


def _name(told: Told) -> str:
    """The call's name without its numbers: `map[0]` and `map[1]` are of one program."""
    name = told.call.name
    return name if name.isalpha() else _NUMBER.sub("#", name)


def _program(told: Told, prompt: PromptTexts, *, is_template: bool) -> Program:
    begins = begins_of(told.call) if is_template else prompt.texts[0]
    return Program(
        name=_name(told),
        model=told.call.model or "",
        begins=begins[:BEGINS_CHARS],
        is_template=is_template,
    )


def _recorded(
    told: Told,
    prompt: PromptTexts,
    tools: tuple[tuple[int, int], ...],
    rate: float,
    numbers: tuple[int, int | None],
) -> RecordedCall:
    number, follows = numbers
    return RecordedCall(
        number=number,
        follows=follows,
        at=told.at,
        segments=tuple([(hash(text), round(len(text) * rate)) for text in prompt.texts]),
        tools=tuple([(tool, round(size * rate)) for tool, size in tools]),
        output=told.usage.output_tokens,
        prompt=told.usage.prompt_tokens,
        computed=told.usage.prompt_tokens - told.usage.cached_tokens,
        fill_s=max(0.0, told.usage.filled - told.usage.started),
        decode_s=max(0.0, told.ended - told.usage.filled),
    )
