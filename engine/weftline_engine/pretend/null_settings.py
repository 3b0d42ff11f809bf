"""The settings of the null engine."""

from __future__ import annotations

from dataclasses import dataclass

from weftline_engine.api.engine_option import NULL, setting
from weftline_engine.pretend.null import NullMode

WORDS_MODE = "words"  # the simulated engine, in real time


@dataclass(frozen=True, slots=True, kw_only=True)
class NullSettings:
    """What the engine says, and how fast."""

    null_mode: str = setting(
        NullMode.ECHO.value,
        NULL,
        "echo the prompt, follow --null-script, or emit max_tokens words; words has steps and a KV "
        "cache of --kv-tokens, in which each word is a token (default: echo)",
        choices=(*NullMode, WORDS_MODE),
    )
    null_script: str | None = setting(
        None, NULL, 'JSON file of replies: [{"when": text, "reply": text}, …]', metavar="FILE"
    )
    null_fill_s: float = setting(
        0.0,
        NULL,
        "seconds that each prompt token takes (default: 0.0)",
        metavar="SECONDS",
        type=float,
    )
    null_step_s: float = setting(
        0.0,
        NULL,
        "seconds that each output token takes (default: 0.0)",
        metavar="SECONDS",
        type=float,
    )
