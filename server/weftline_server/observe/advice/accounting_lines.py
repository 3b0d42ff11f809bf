"""Lines of accounting that clients write before a system prompt, counted for the advice.

Such a line changes from request to request. The server leaves it out of the prompt, so it costs
nothing here, and everything that stands behind it where nobody leaves it out.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

MOST_LINES = 256  # of all tenants; the one that was seen longest ago leaves


@dataclass(slots=True)
class _Line:
    """A line of one name, before the prompts of one model."""

    last: int = 0  # the hash of its text
    requests: int = 0
    changes: int = 0


@dataclass(slots=True)
class AccountingLines:
    """The lines of each tenant, by their names and models."""

    _found: OrderedDict[tuple[str, str, str], _Line] = field(default_factory=OrderedDict)

    def note(self, tenant: str, model: str, text: str) -> None:
        """A request had this line, whose name is before its colon."""
        key = (tenant, model, text.partition(":")[0])
        line = self._found.setdefault(key, _Line())
        self._found.move_to_end(key)
        if len(self._found) > MOST_LINES:
            self._found.popitem(last=False)
        line.changes += line.requests > 0 and line.last != hash(text)
        line.requests, line.last = line.requests + 1, hash(text)

    def rows(self, tenant: str) -> list[dict[str, Any]]:
        """A row of the advice for each line that has changed."""
        return [
            _row(model, name, line)
            for (whose, model, name), line in self._found.items()
            if whose == tenant and line.changes
        ]


def _row(model: str, name: str, line: _Line) -> dict[str, Any]:
    says = (
        f"system message: its first line, `{name}`, changed in {line.changes:,} of "
        f"{line.requests:,} requests: the server leaves it out, so nothing is computed anew; "
        "switch it off in the client where its prompts go to another server, too"
    )
    id = hashlib.blake2b(repr((model, name, "accounting")).encode(), digest_size=6)
    none = dict.fromkeys(("begins", "message", "tool", "before", "after"))
    return {
        **none,
        "id": id.hexdigest(),
        "name": name,
        "model": model,
        "engine": "",
        "is_template": False,
        "cause": "accounting",
        "role": "system",
        "variables": [],
        "offset": 0,
        "calls": line.requests,
        "times": line.changes,
        **dict.fromkeys(("lost_tokens", "prompt_tokens", "cached_tokens"), 0),
        "says": says,
    }
