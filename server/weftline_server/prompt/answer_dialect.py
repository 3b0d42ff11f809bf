"""The dialects of answers that have marks of their own, and what rewrites them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weftline_server.prompt.chat import WriteCalls
from weftline_server.prompt.dialect_channels import GemmaRewriter, HarmonyRewriter
from weftline_server.prompt.dialect_lists import (
    APERTUS,
    COMMAND,
    JSON_IN_TAGS,
    LFM2,
    NEMOTRON,
    ListRewriter,
    ListStyle,
    write_lfm2,
)
from weftline_server.prompt.dialect_tags import (
    DEEPSEEK,
    DEEPSEEK_JSON,
    KIMI,
    MINICPM,
    MINIMAX,
    SEED,
    TagRewriter,
)
from weftline_server.prompt.rewriter import THINK, THOUGHT, Rewriter
from weftline_server.prompt.template_thoughts import Marks


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """How a family of models writes answers.

    `sign` is in the family's chat templates. `marks` are the special tokens that an answer needs.
    `thinks` says that an answer may begin with thoughts, where no `<think>` in the template does.
    `write` writes the calls of earlier messages if the template does not. `block` are the marks of
    thoughts in a text, where they are not `<think>` and `</think>`.
    """

    sign: str
    marks: tuple[str, ...]
    rewriter: Callable[[], Rewriter]
    thinks: bool = False
    write: WriteCalls | None = None
    block: Marks | None = None


def _list_dialect(sign: str, style: ListStyle, write: WriteCalls | None = None) -> AnswerDialect:
    marks = (style.opens, style.closes, *style.becomes)
    named = {text: mark for mark, text in style.becomes.items()}
    block = (named[THINK], named[THOUGHT]) if THINK in named else None
    return AnswerDialect(sign, marks, lambda: ListRewriter(style), block is not None, write, block)


# Where two signs are in a template, the first one counts.
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
    "DeepSeek V3": AnswerDialect(
        "<｜tool▁sep｜>",
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ),
        lambda: TagRewriter(DEEPSEEK_JSON),
    ),
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
    "Command R7B": _list_dialect("<|START_ACTION|>", COMMAND),
    "MiniCPM5": AnswerDialect(
        '<param name="',
        ("<function", "</function>", "<param", "</param>", "<![CDATA[", "]]>"),
        lambda: TagRewriter(MINICPM),
    ),
    "Apertus": _list_dialect("<|tools_prefix|>", APERTUS),
    "LFM2": _list_dialect("List of tools: ", LFM2, write=write_lfm2),
    "Nemotron Nano 2": _list_dialect("<TOOLCALL>", NEMOTRON),
    "Apriel": _list_dialect("<tool_calls>", JSON_IN_TAGS),
}


def dialect_of(template: str | None) -> AnswerDialect | None:
    """The dialect of the model with this chat template; None if it writes as Hermes or Qwen."""
    found = (
        one for one in ANSWER_DIALECTS.values() if template is not None and one.sign in template
    )
    return next(found, None)
