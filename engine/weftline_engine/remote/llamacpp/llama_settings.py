"""The settings of a llama-server that is started."""

from __future__ import annotations

from dataclasses import dataclass

from weftline_engine.api.engine_option import LLAMA, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSettings:
    """`llama_server` is the program; None looks for it on PATH."""

    llama_server: str | None = setting(
        None,
        LLAMA,
        "the llama-server that the llamacpp engine starts (default: the one on PATH)",
        metavar="PATH",
    )
    llama_arguments: tuple[str, ...] = setting(
        (),
        LLAMA,
        'words to add to llama-server\'s command line, as --llama-arguments="--threads 4" '
        "(default: none)",
        metavar="WORD",
        nargs="*",
    )
