"""Which engines take which options, and the sentence that refuses an option of another engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weftline.contract.errors import InvalidRequest

CONNECTS = " --connect"  # after the name of an engine that may also be started here

_TORCH = ("torch",)
_VLLM = ("vllm",)
_LLAMA = ("llamacpp",)
_NULL = ("null",)
_OPENAI = ("openai",)
_RUNNING = (f"vllm{CONNECTS}", "sglang", f"llamacpp{CONNECTS}", "openai")
_ALL = ("torch", "vllm", "llamacpp", "null", *_RUNNING)

# By the setting of an `[[engine]]` table. A setting that is not here is taken by none.
ENGINE_TAKERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("engine", "name", "call_it"), _ALL),
    "model": tuple(one for one in _ALL if one != "null"),
    "max_running": tuple(one for one in _ALL if one != f"llamacpp{CONNECTS}"),
    "dtype": ("torch", "vllm"),
    "load_format": ("torch", "vllm"),
    "kv_tokens": ("torch", "llamacpp", "null"),
    **dict.fromkeys(("device", "quantize", "kv_fraction", "host_kv_tokens", "cores"), _TORCH),
    **dict.fromkeys(("tree_attention", "drafting"), _TORCH),
    **dict.fromkeys(("connect", "connect_key_env", "served"), _RUNNING),
    "kv_events": (f"vllm{CONNECTS}", "sglang"),
    "data_parallel_rank": (f"vllm{CONNECTS}",),
    **dict.fromkeys(("dialect", "extras", "endpoint_scheduler"), _OPENAI),
    "context_limit": (
        "vllm",
        "llamacpp",
        *(one for one in _RUNNING if one != "sglang"),
    ),
    **dict.fromkeys(("engine_python", "tensor_parallel", "host_kv_gib"), _VLLM),
    **dict.fromkeys(("vllm_scheduler", "vllm_arguments"), _VLLM),
    **dict.fromkeys(("llama_server", "llama_arguments"), _LLAMA),
    **dict.fromkeys(("null_mode", "null_script", "null_fill_s", "null_step_s"), _NULL),
}
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
