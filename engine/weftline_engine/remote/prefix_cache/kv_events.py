"""Reads vLLM's KV events: which blocks its KV cache has stored, and which it has removed.

vLLM and SGLang publish them in MessagePack, as objects or, in older versions and in SGLang, as
lists. They come from another process, so every field that is used is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

# A step stores at most as many blocks as its tokens fill. Longer batches are refused.
MOST_EVENTS = 1 << 16
BlockName = int | bytes

# The fields of an event in a list, in the order in which vLLM has added them. The type comes first.
_STORED = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
_STATES = "mamba"  # the kind of groups of layers with a state, such as convolutions
_WINDOWS = ("sliding_window", "sliding_window_mla")
# Kinds of groups with the keys and values of all tokens. Without a kind it is the first group.
_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks behind `parent` (None: at the start), each with its tokens.

    `extras` has for each block what distinguishes it beside its tokens, such as a tenant's salt.
    `on_host` says that they are in host memory, behind a KV connector. `group` numbers the group of
    layers.
    """

    names: tuple[BlockName, ...]
    parent: BlockName | None
    tokens: tuple[tuple[int, ...], ...]
    extras: tuple[tuple[str, ...], ...]
    on_host: bool = False
    group: int = 0


@dataclass(frozen=True, slots=True)
class TailsStored:
    """What a group of layers keeps of few tokens: its states at the ends of blocks, or the keys and
    values of blocks. These blocks have the same names in the groups that keep all tokens.

    The group needs the `window` tokens before the end of a prompt, in blocks of `size`; 0 is its
    state there.
    """

    names: tuple[BlockName, ...]
    group: int
    on_host: bool = False
    window: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks or states that the device, or with `on_host` the host, does not have any more."""

    names: tuple[BlockName, ...]
    on_host: bool = False
    group: int = 0


@dataclass(frozen=True, slots=True)
class BlocksCleared:
    """The cache is empty."""


KVEvent = BlocksStored | TailsStored | BlocksRemoved | BlocksCleared


def kv_events(payload: bytes) -> list[KVEvent]:
    """The events of one message. Raises ValueError if it is not such a message.

    Groups of layers without a kind are left out except the first.
    """
    try:
        batch = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(f"a KV event message is not MessagePack: {error}") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise ValueError("a KV event message is a list of a time and a list of events")
    if len(batch[1]) > MOST_EVENTS:
        raise ValueError(f"a KV event message has more than {MOST_EVENTS} events")
    return [event for one in batch[1] if (event := _event(one)) is not None]


def _event(told: Any) -> KVEvent | None:
    fields = _fields(told)
    if fields.get("type") == "AllBlocksCleared":
        return BlocksCleared()
    group, kind = fields.get("group_idx") or 0, fields.get("kv_cache_spec_kind")
    if not isinstance(group, int):
        raise ValueError("a KV event numbers its group of layers")
    on_host = fields.get("medium") not in (None, "GPU")
    match fields.get("type"):
        case "BlockStored" if kind == _STATES:
            return TailsStored(_names(fields.get("block_hashes")), group, on_host)
        case "BlockStored" if kind in _WINDOWS:
            return _window(fields, on_host, group)
        case "BlockStored" if kind in _ATTENTION and (kind or not group):
            return _stored(fields, on_host, group)
        case "BlockRemoved":
            return BlocksRemoved(_names(fields.get("block_hashes")), on_host, group)
    return None  # of another kind, or of a newer version


def _fields(told: Any) -> dict[str, Any]:
    if isinstance(told, dict):
        return told
    if isinstance(told, list) and told:
        order = _STORED if told[0] == "BlockStored" else _REMOVED
        return dict(zip(order, told, strict=False))
    raise ValueError("a KV event is an object, or a list that begins with its type")


def _stored(fields: dict[str, Any], on_host: bool, group: int) -> BlocksStored | None:
    names, size = _names(fields.get("block_hashes")), fields.get("block_size")
    tokens, parent = fields.get("token_ids"), fields.get("parent_block_hash")
    if parent is not None:
        (parent,) = _names([parent])
    if not isinstance(size, int) or size < 1 or not isinstance(tokens, list):
        raise ValueError("a stored block has a size and token ids")
    if not all(isinstance(token, int) for token in tokens):
        raise ValueError("a stored block has a size and token ids")
    if len(tokens) != len(names) * size:
        return None  # blocks of another size than those that vLLM hashes, or without their tokens
    extras = fields.get("extra_keys") or [None] * len(names)
    if not isinstance(extras, list) or len(extras) != len(names):
        raise ValueError("a stored block has extra keys for each block")
    return BlocksStored(
        names,
        parent,
        tuple(tuple(tokens[at : at + size]) for at in range(0, len(tokens), size)),
        tuple(tuple(map(str, one or ())) for one in extras),
        on_host,
        group,
    )


def _window(fields: dict[str, Any], on_host: bool, group: int) -> TailsStored:
    names, size = _names(fields.get("block_hashes")), fields.get("block_size")
    window = fields.get("kv_cache_spec_sliding_window")
    if not isinstance(size, int) or size < 1 or not isinstance(window, int) or window < 1:
        raise ValueError("a stored block of a window has a size and the window's")
    # A token attends to itself, too.
    return TailsStored(names, group, on_host, window - 1, size)


def _names(told: Any) -> tuple[BlockName, ...]:
    if not _are(told, int | bytes):
        raise ValueError("a KV event names its blocks by numbers or bytes")
    return tuple(told)


def _are(values: Any, kind: Any) -> bool:
    return isinstance(values, Sequence) and all(isinstance(one, kind) for one in values)
