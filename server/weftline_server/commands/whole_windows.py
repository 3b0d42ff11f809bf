"""Whether a llama-server keeps all keys of layers with sliding windows, as --swa-full says.

Without them a common beginning is computed in each slot, because a file of a slot cannot be
continued. Twice 4 calls with 2,000 tokens in common computed 21,713 tokens without, and 7,657 with
all keys. On the shape of Gemma 3 1B the cache of 4 slots of 8,192 tokens took 832 MiB in place of
216. llama-server's own cache of conversations, which it then does without, may hold 8 GiB.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weftline_engine.own.models import ModelUnavailable
from weftline_engine.own.models.gguf_header import GgufHeader
from weftline_engine.remote.llamacpp.config import USUAL_CONTEXT, USUAL_SLOTS
from weftline_engine.remote.llamacpp.state_cut import StateCut, cut_of
from weftline_server.commands.coding_agents import shape_of, tokens_of
from weftline_server.commands.default_model import Machine, this_machine
from weftline_server.commands.engine_spec import EngineSpec

WHOLE = "--swa-full"
# Who gives llama-server's own cache a size wants windows as llama-server has them.
_CHOSEN = (WHOLE, "--cache-ram", "-cram")


def llama_words(spec: EngineSpec, file: Path) -> tuple[str, ...]:
    """The words of a child's command line. The operator reads why one was added."""
    words = spec.llama.llama_arguments
    try:
        values = GgufHeader(file).values
    except ModelUnavailable:  # llama-server may read it all the same
        return words
    gib = whole_gib(spec, values, file.stat().st_size, this_machine())
    if gib is None:
        return words
    print(
        f"weftline: {WHOLE} keeps all keys of this model's sliding windows ({gib:.1f} GiB at most "
        "for all slots), so that a common beginning is computed once; --llama-arguments="
        '"--cache-ram 8192" keeps only the windows',
        file=sys.stderr,
    )
    return (WHOLE, *words)


def whole_gib(
    spec: EngineSpec, values: Mapping[str, Any], weight_bytes: int, machine: Machine
) -> float | None:
    """The memory of all keys and values, if the model has windows and they are to be whole."""
    if cut_of(values) is not StateCut.WINDOWS or has_chosen(spec.llama.llama_arguments):
        return None
    slots, context = spec.max_running, spec.endpoint.context_limit
    tokens = spec.kv_tokens or (slots or USUAL_SLOTS) * (context or USUAL_CONTEXT)
    shape = shape_of(values, weight_bytes)
    if shape is None or tokens > tokens_of(shape, machine):
        return None
    return tokens * shape.token_bytes / (1 << 30)


def has_chosen(words: Sequence[str]) -> bool:
    """Whether the operator's words say how windows are kept."""
    return any(word.partition("=")[0] in _CHOSEN for word in words)
