"""Sessions out of a store as lines of JSON, and into another one. No server may use a store that
is a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from weftline.contract.errors import InvalidRequest
from weftline_server.journal.backend import SessionStore
from weftline_server.journal.replay import Opened
from weftline_server.journal.store import Append, Change, Close, Open

FORMAT = 1
FIELDS = frozenset({"tenant", "id", "alias", "at", "stays"})


def exported(store: SessionStore) -> Iterator[str]:
    """A line for each session, the open ones first, with its records in plain text."""
    for closed in (False, True):
        for one in store.sessions(closed=closed):
            opened = {name: getattr(one.opened, name) for name in sorted(FIELDS)}
            records = [json.loads(record) for record in store.records(one.number)]
            line = {"format": FORMAT, **opened, "closed": one.closed, "records": records}
            yield json.dumps(line, separators=(",", ":"))


def imported(store: SessionStore, lines: Iterable[str]) -> tuple[int, int]:
    """How many sessions were added, and how many the store had already. Raises InvalidRequest."""
    known = {
        (one.opened.tenant, one.opened.id)
        for closed in (False, True)
        for one in store.sessions(closed=closed)
    }
    number, before = store.last_number(), len(known)
    added = there = 0
    for at, line in enumerate(lines, 1):
        opened, closed, records = _read(line, at)
        if (opened.tenant, opened.id) in known:
            there += 1
            continue
        known.add((opened.tenant, opened.id))
        number += 1
        changes: list[Change] = [Open(number, opened)]
        changes += [Append(number, record) for record in records]
        if closed is not None:
            changes.append(Close(number, closed))
        store.write(changes)
        added += 1
    assert len(known) == before + added
    return added, there


def _read(line: str, at: int) -> tuple[Opened, float | None, list[bytes]]:
    try:
        data: dict[str, Any] = json.loads(line)
        if data["format"] != FORMAT:
            raise InvalidRequest(f"line {at} is of format {data['format']}, not {FORMAT}")
        opened = Opened(**{name: data[name] for name in FIELDS})
        records = [json.dumps(one, separators=(",", ":")).encode() for one in data["records"]]
        closed = data["closed"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"line {at} holds no session: {error}", param="file") from error
    return opened, closed, records
