"""Passes that the operator names. A pass that fails leaves the graph as it is.

The operator's passes are Python functions that an installed package offers under the entry point
`weftline.passes`. Only the operator's configuration can name one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from weftline_server.passes.plan import Pass

GROUP = "weftline.passes"

log = logging.getLogger("weftline.passes")


class UnknownPass(Exception):
    """No installed package offers this pass, or it cannot be imported. The message is for the
    operator."""


@dataclass(slots=True)
class Plugin:
    """An operator's pass. Its first failure is logged."""

    name: str
    run: Pass
    failed: bool = False

    def complain(self, error: Exception) -> None:
        """Log the first failure: the pass raised, or its findings do not fit the graph."""
        if not self.failed:
            text = "the pass %s fails and changes nothing: %r"
            log.warning(text, self.name, error, exc_info=error)
        self.failed = True


def load(names: Sequence[str]) -> tuple[Plugin, ...]:
    """The passes that installed packages offer under these names. Raises UnknownPass."""
    if not names:
        return ()  # to look through the installed packages takes 8 ms
    offered = {one.name: one for one in entry_points(group=GROUP)}
    found = []
    for name in dict.fromkeys(names):
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise UnknownPass(f"no installed package offers the pass {name!r}: there are {known}")
        try:
            found.append(Plugin(name, offered[name].load()))
        except Exception as error:  # whatever another package's import raises
            log.exception("the pass %s cannot be imported", name)
            raise UnknownPass(f"the pass {name!r} cannot be imported: {error!r}") from error
    return tuple(found)
