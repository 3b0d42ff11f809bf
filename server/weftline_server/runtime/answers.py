"""Reads answers with tools while they are generated: each text once, for all that use its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weftline_server.graph.primitive import Primitive
from weftline_server.lowering.kinds.prompt import PromptBody
from weftline_server.lowering.results import reader_of
from weftline_server.prompt.answer import AnswerBuilder
from weftline_server.prompt.answer_parser import AnswerParser
from weftline_server.prompt.prompter import Prompter
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


class Answers:
    """The answers with tools that engines generate now, by their ops."""

    def __init__(self, prompter: Callable[[str], Prompter]) -> None:
        self._prompter = prompter
        self._readings: dict[str, _Reading] = {}

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

    def _reading(self, op: str, primitive: Primitive) -> _Reading:
        found = self._readings.get(op)
        if found is None:
            body = primitive.body
            assert isinstance(body, PromptBody) and body.is_read, "its text is read"
            reader = reader_of(body, primitive.id, self._prompter(primitive.resource))
            found = self._readings[op] = _Reading(reader)
        return found
