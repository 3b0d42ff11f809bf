"""`weftline sessions`: lists the sessions that a server still knows, the newest first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from weftline import Client
from weftline_server.commands.tables import aligned, printable

_SHOWN = 20
HEADS = ("session", "state", "name", "age", "calls", "tokens in", "cached", "out", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument(
        "--limit", type=int, default=_SHOWN, help=f"sessions to list (default: {_SHOWN})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one session a line")


def run(args: argparse.Namespace) -> int:
    """Print a line for each session."""
    with Client(args.base_url) as client:
        rows = client.sessions(limit=args.limit)
    if args.json:
        for row in rows:
            print(json.dumps(row))
    elif rows:
        print(table(rows))
    else:
        print("no session is open, and none was closed a short time ago")
    return 0


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of GET /v1/sessions, one a line. A session with steps counts them as calls."""
    return aligned(
        HEADS,
        [
            (
                str(row["session_id"]),
                str(row["state"]),
                printable(row["name"]),
                f"{row['age_s']:.1f} s",
                str(row["calls"] + row["steps"]),
                str(row["prompt_tokens"]),
                str(row["cached_tokens"]),
                str(row["output_tokens"]),
                row["error"] or "",
            )
            for row in rows
        ],
        right=("age", "calls", "tokens in", "cached", "out"),
    )
