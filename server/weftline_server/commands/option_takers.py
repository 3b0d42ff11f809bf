"""Which engines take which options, and the sentence that refuses an option of another engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weftline.contract.errors import InvalidRequest
from weftline_engine.api.engine_option import CONNECTS

_HINTS = {
    "served": "; the model's name for clients is {call_it}",
    "tensor_parallel": ": weftline serve MODEL --engine vllm --engine-python PYTHON "
    "--tensor-parallel GPUS",
}


def refuse_others(
    given: Collection[str],
    taker: str,
    takers: Mapping[str, tuple[str, ...]],
    written: Mapping[str, str],
) -> None:
    """Raise InvalidRequest for the first of the settings `given` that `taker` does not take.

    `written` has the names of the settings as the operator writes them.
    """
    for name in given:
        taken_by = takers.get(name, ())
        if taker in taken_by:
            continue
        which = " and ".join(filter(None, (", ".join(taken_by[:-1]), *taken_by[-1:])))
        here = f"{taker} without{CONNECTS}" if taker + CONNECTS in taken_by else taker
        hint = _HINTS.get(name, ": leave it out, or choose an engine that takes it")
        hint = hint.format(call_it=written.get("call_it", "call_it"))
        raise InvalidRequest(
            f"{written.get(name, name)} is an option of {which}, and this is {here}{hint}",
            param=name,
        )
