"""A setting of an engine: its default, which engines take it, and the sentence that describes it.

The settings stand beside their engine. The command line and the tables of a file are made of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

CONNECTS = " --connect"  # after the name of an engine that may also be started here

TORCH = ("torch",)
VLLM = ("vllm",)
LLAMA = ("llamacpp",)
NULL = ("null",)
OPENAI = ("openai",)
RUNNING = (f"vllm{CONNECTS}", "sglang", f"llamacpp{CONNECTS}", "openai")
ALL = ("torch", "vllm", "llamacpp", "null", *RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """What is said of a setting. Without help only a file can give it, no option.

    `choices` are its values, `type` reads one from a text, `nargs` is argparse's, and an option
    that `is_flag` has no value.
    """

    takers: tuple[str, ...]
    help: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    type: Callable[[str], object] | None = None
    nargs: str | None = None
    is_flag: bool = False


def setting(
    default: Any,
    takers: tuple[str, ...],
    help: str = "",
    *,
    choices: Iterable[str] | None = None,
    **more: Any,
) -> Any:
    """A field of an engine's settings."""
    names = None if choices is None else tuple(map(str, choices))
    made = EngineSetting(takers=takers, help=help, choices=names, **more)
    return dataclasses.field(default=default, metadata={"setting": made})


def setting_of(field: dataclasses.Field[Any]) -> EngineSetting:
    """What `setting` was given for the field."""
    found: EngineSetting = field.metadata["setting"]
    return found


def values(settings: Any) -> dict[str, Any]:
    """The settings by name, for the config of their engine."""
    return {one.name: getattr(settings, one.name) for one in dataclasses.fields(settings)}
