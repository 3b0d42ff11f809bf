"""The dialects of answers that have marks of their own, and what rewrites them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from weftline_server.prompt.dialect_channels import GemmaRewriter, HarmonyRewriter
from weftline_server.prompt.dialect_tags import (
    DEEPSEEK,
    KIMI,
    MINIMAX,
    SEED,
    TagRewriter,
)


class Rewriter(Protocol):
    """Takes an answer's text piece by piece, and gives it as Hermes and Qwen write: `<think>`
    around thoughts, `<tool_call>` around calls.

    However the text is cut, the pieces add up to the same. Text without marks stays as it is.
    """

    def feed(self, text: str) -> str: ...

    def end(self) -> str: ...


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """How a family of models writes answers.

    `sign` is in the family's chat templates. `marks` are the special tokens that an answer needs.
    `thinks` says that an answer may begin with thoughts, where no `<think>` in the template does.
    """

    sign: str
    marks: tuple[str, ...]
    rewriter: Callable[[], Rewriter]
    thinks: bool = False


ANSWER_DIALECTS: Mapping[str, AnswerDialect] = {
    "gpt-oss": AnswerDialect(
        "<|channel|>",
        (
            "<|start|>",
            "<|channel|>",
            "<|constrain|>",
            "<|message|>",
            "<|end|>",
            "<|call|>",
            "<|return|>",
        ),
        HarmonyRewriter,
        thinks=True,
    ),
    "Gemma 4": AnswerDialect(
        "<|tool_call>",
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        GemmaRewriter,
        thinks=True,
    ),
    "Kimi K2": AnswerDialect(
        "<|tool_call_argument_begin|>",
        (
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ),
        lambda: TagRewriter(KIMI),
    ),
    "DeepSeek V3.2": AnswerDialect("｜DSML｜", ("｜DSML｜",), lambda: TagRewriter(DEEPSEEK)),
    "MiniMax M2": AnswerDialect(
        "<minimax:tool_call>",
        ("<minimax:tool_call>", "</minimax:tool_call>"),
        lambda: TagRewriter(MINIMAX),
    ),
    "Seed-OSS": AnswerDialect(
        "<seed:tool_call>",
        ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
        lambda: TagRewriter(SEED),
        thinks=True,
    ),
}


def dialect_of(template: str | None) -> AnswerDialect | None:
    """The dialect of the model with this chat template; None if it writes as Hermes or Qwen."""
    found = (
        one for one in ANSWER_DIALECTS.values() if template is not None and one.sign in template
    )
    return next(found, None)
