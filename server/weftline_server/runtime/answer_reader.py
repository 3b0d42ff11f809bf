"""Reads answers while they are generated: each text once, for all that use its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weftline.contract.protocol import Message
from weftline_engine import api
from weftline_server.graph.primitive import Primitive
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.result_values import reader_of, thinking_of
from weftline_server.prompt.answer import AnswerBuilder
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.prompter import Prompter
from weftline_server.prompt.rewriter import Rewriter
from weftline_server.prompt.special_marks import MarkedText
from weftline_server.prompt.thinking_block import ThinkingBlock
from weftline_server.prompt.tool_parser import Delta


@dataclass(slots=True)
class _Reading:
    """An answer that is being generated."""

    reader: AnswerParser
    answer: AnswerBuilder = field(default_factory=AnswerBuilder)

    def put(self, deltas: list[Delta]) -> tuple[Delta, ...]:
        for delta in deltas:
            self.answer.add(delta)
        return tuple(deltas)


@dataclass(slots=True)
class _Rewriting:
    """A text with marks of its dialect that is being generated."""

    marked: MarkedText
    rewriter: Rewriter


class Answers:
    """The answers that engines generate now, by their ops: those with tools, those in a dialect
    with marks of its own, and those whose thoughts are no part of the text."""

    def __init__(self, prompter: Callable[[str], Prompter]) -> None:
        self._prompter = prompter
        self._readings: dict[str, _Reading] = {}
        self._rewritings: dict[str, _Rewriting] = {}
        self._blocks: dict[str, ThinkingBlock] = {}

    def marks(self, primitive: Primitive) -> tuple[str, ...]:
        """The special tokens that an answer needs, because it is rewritten. A prompt of text has no
        template that could ask for marks, so its output stays as it is."""
        dialect, body = self._prompter(primitive.resource).dialect, primitive.body
        if dialect is None:
            return ()
        assert isinstance(body, PromptBody), "it generates text"
        is_chat = any(isinstance(item, Message) for item in body.call.prompt)
        return dialect.marks if is_chat else ()

    def text(self, part: api.Part, primitive: Primitive) -> str:
        """The text of a part, as our parsers read it."""
        found = self._rewriting(part.op, primitive)
        if found is None:
            return part.text
        return found.rewriter.feed(found.marked.feed(part.tokens, part.text))

    def rest(self, op: str, primitive: Primitive) -> str:
        """The text that the end of an answer completes."""
        if (found := self._rewritings.pop(op, None)) is None:
            return ""
        return found.rewriter.feed(found.marked.end()) + found.rewriter.end()

    def split(self, op: str, primitive: Primitive, text: str, ends: bool) -> tuple[str, str]:
        """More thoughts and more of the answer, where a call keeps them apart."""
        body = primitive.body
        assert isinstance(body, PromptBody), "it generates text"
        if not body.call.separate_reasoning or body.is_read:
            return "", text
        if (block := self._blocks.get(op)) is None:
            thinking = thinking_of(body.call, body.output, self._prompter(primitive.resource))
            block = self._blocks[op] = ThinkingBlock(thinking)
        thoughts, said = block.feed(text)
        if ends:
            del self._blocks[op]
            last, rest = block.end()
            thoughts, said = thoughts + last, said + rest
        return thoughts, said

    def read(self, op: str, primitive: Primitive, text: str) -> tuple[Delta, ...]:
        reading = self._reading(op, primitive)
        return reading.put(reading.reader.feed(text))

    def end(self, op: str, primitive: Primitive) -> tuple[Delta, ...]:
        """The parts that the end of the text completes."""
        reading = self._reading(op, primitive)
        return reading.put(reading.reader.end())

    def of(self, op: str) -> AnswerBuilder:
        reading = self._readings.get(op)
        return AnswerBuilder() if reading is None else reading.answer

    def forget(self, op: str) -> None:
        """The answer has ended, or is generated again."""
        self._readings.pop(op, None)
        self._rewritings.pop(op, None)
        self._blocks.pop(op, None)

    def _rewriting(self, op: str, primitive: Primitive) -> _Rewriting | None:
        """What rewrites an answer, if its dialect has marks."""
        prompter = self._prompter(primitive.resource)
        if prompter.dialect is None:
            return None
        if (found := self._rewritings.get(op)) is not None:
            return found
        if not self.marks(primitive):
            return None
        marked = MarkedText(lambda id: prompter.token(id)[1], prompter.special, prompter.marks)
        found = self._rewritings[op] = _Rewriting(marked, prompter.dialect.rewriter())
        return found

    def _reading(self, op: str, primitive: Primitive) -> _Reading:
        found = self._readings.get(op)
        if found is None:
            body = primitive.body
            assert isinstance(body, PromptBody) and body.is_read, "its text is read"
            reader = reader_of(body, primitive.id, self._prompter(primitive.resource))
            found = self._readings[op] = _Reading(reader)
        return found
