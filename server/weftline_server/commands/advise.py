"""`weftline advise`: says why prompts are not cached, and what to change, the costliest first.

With --try it simulates recorded calls before and after each change. It changes no prompt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from weftline import Client
from weftline_server.commands.advice_trial import trial
from weftline_server.commands.tables import printable

_SHOWN = 20
NOTHING = (
    "no advice: no program has lost tokens to prompts that part, or the server has seen too few "
    "calls since its start"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument(
        "--limit", type=int, default=_SHOWN, help=f"findings to print (default: {_SHOWN})"
    )
    parser.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="simulate the recorded calls of each finding, as they were and after the change",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one finding a line")


def run(args: argparse.Namespace) -> int:
    """Print what the server advises."""
    rows = fetched(args.base_url, args.limit, lengths=args.tries)
    if args.tries:
        rows = [tried(row) for row in rows]
    if args.json:
        for row in rows:
            print(json.dumps(row))
    else:
        print("\n".join(lines(rows)) if rows else NOTHING)
    return 0


def fetched(base_url: str | None, limit: int, *, lengths: bool = False) -> list[dict[str, Any]]:
    """At most `limit` rows of GET /v1/advice."""
    with Client(base_url) as client:
        return client.advice(limit=limit, lengths=lengths)


def tried(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the figures of a trial in place of its lengths."""
    found = trial(row.pop("lengths"))
    return {**row, "trial": {**asdict(found), "says": str(found)}}


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each row, with the tokens lost in all, and the two texts if they are known."""
    for row in rows:
        yield f"{printable(row['name'])}: {printable(row['says'])}"
        yield f"    lost so far: {row['lost_tokens']:,} of {row['prompt_tokens']:,} prompt tokens"
        if row["before"] is not None:
            yield f"    before: {printable(row['before'])}"
            yield f"    after:  {printable(row['after'])}"
        if "trial" in row:
            yield f"    tried: {row['trial']['says']}"
