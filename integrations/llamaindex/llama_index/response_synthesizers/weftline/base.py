"""WeftlineSynthesizer: the name by which programs ask for a synthesis that is sent ahead."""

from __future__ import annotations

from typing import Any

from llama_index.core.llms.llm import LLM
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.response_synthesizers.base import BaseSynthesizer
from llama_index.core.settings import Settings
from llama_index.llms.weftline import Weftline


def WeftlineSynthesizer(
    llm: LLM | None = None,
    response_mode: ResponseMode | str = ResponseMode.COMPACT,
    **options: Any,
) -> BaseSynthesizer:
    """LlamaIndex's own synthesizer of this mode on a Weftline LLM, which sends its calls ahead.

    `options` are those of `get_response_synthesizer`: templates, `streaming` and so on.
    """
    found = llm or Settings.llm
    if not isinstance(found, Weftline):
        kind = type(found).__name__
        raise ValueError(f"WeftlineSynthesizer runs on a Weftline LLM, and this is a {kind}")
    made: BaseSynthesizer = get_response_synthesizer(
        llm=found, response_mode=ResponseMode(response_mode), **options
    )
    return made
