"""Reads the short names of models, and chooses the one that a machine should serve."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("short_names.toml")

# The share of the free memory, and of a GPU's, that the weights may take. The rest is for the KV
# cache and for programs.
_MEMORY_SHARE, _GPU_SHARE = 0.6, 0.7
# What a core reads of weights, and all of them together, in gigabytes a second: two cores of an AMD
# EPYC read 27 to 34 together, and more cores of a desktop's processor read no more than 50.
_CORE_SPEED, _MOST_SPEED = 12.0, 50.0
# A reader follows as many tokens a second.
_TOKENS_A_SECOND = 10.0
_NEAREST = 4  # names that a message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortName:
    """A model by the name that people type.

    A machine with a GPU is advised to take one of those of `gpu`, and another machine one of those
    that are `suggested`.
    """

    name: str
    source: str
    gigabytes: float
    reads: float | None = None  # gigabytes that a token reads; None: all
    suggested: bool = False
    gpu: bool = False


@cache
def short_names() -> tuple[ShortName, ...]:
    """All of them. Those to choose from come in the order of their size."""
    raw = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(ShortName(**one) for one in raw["model"])


def nearest(name: str) -> list[str]:
    """The short names that are most like a name that is none."""
    names = [one.name for one in short_names()]
    families = {one.partition(":")[0] for one in names}
    family = get_close_matches(name.lower().partition(":")[0], families, 1)
    wanted = (name.lower(), *(f"{one}:" for one in family))
    return [one for one in names if one.startswith(wanted)][:_NEAREST]


def suggestion(cores: int, free_bytes: int, gpu_bytes: int = 0) -> ShortName | None:
    """The largest model to choose from that fits into the memory and, without a GPU, answers as
    fast as one reads. None if none does."""
    room, names = free_bytes * _MEMORY_SHARE, short_names()
    on_gpu = [one for one in names if one.gpu and one.gigabytes * 1e9 <= gpu_bytes * _GPU_SHARE]
    speed = min(cores * _CORE_SPEED, _MOST_SPEED)
    on_cpu = [
        one
        for one in names
        if one.suggested
        and one.gigabytes * 1e9 <= room
        and speed / (one.reads or one.gigabytes) >= _TOKENS_A_SECOND
    ]
    return next(reversed(on_gpu or on_cpu), None)
