"""A setting of an engine: its default, who takes it, and its option on the command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOption:
    """Which engines take a setting, and how the command line says it. Without help it does not."""

    takers: tuple[str, ...]
    help: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    type: Callable[[str], object] | None = None
    nargs: str | None = None
    is_flag: bool = False

    def declare(self, flag: str, group: argparse._ActionsContainer) -> None:
        """Add the option to a group of arguments."""
        if self.is_flag:
            group.add_argument(flag, action="store_true", default=None, help=self.help)
            return
        more = {"type": self.type, "nargs": self.nargs}
        given: dict[str, Any] = {name: one for name, one in more.items() if one is not None}
        group.add_argument(
            flag, choices=self.choices, metavar=self.metavar, help=self.help, **given
        )


def setting(default: Any, takers: tuple[str, ...], help: str = "", **option: Any) -> Any:
    """A field of an engine's settings."""
    made = EngineOption(takers=takers, help=help, **option)
    return dataclasses.field(default=default, metadata={"option": made})


def option_of(field: dataclasses.Field[Any]) -> EngineOption:
    """The option of a field that `setting` made."""
    found: EngineOption = field.metadata["option"]
    return found
