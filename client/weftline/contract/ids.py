"""Checks the ids of sessions and variables. They stand in URL paths and logs, so few characters
are allowed.
"""

from __future__ import annotations

import re

from weftline.contract.errors import InvalidRequest

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,127}")


def check_id(value: str, param: str) -> None:
    """Raise InvalidRequest unless `value` is a valid id of a session or variable."""
    if not _ID.fullmatch(value):
        raise InvalidRequest(
            f"{param} {value[:40]!r} is not an id: use 1 to 128 letters, digits or '_-.:'",
            param=param,
        )
