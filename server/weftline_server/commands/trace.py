"""`weftline trace`: shows a session's timeline as text and SVG, or its events."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weftline import Client
from weftline.contract.errors import UnknownSession
from weftline.sdk import timeline
from weftline.sdk.client import Session
from weftline_server.commands.tables import aligned, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("session", nargs="?", metavar="SESSION", help="id of the session")
    which.add_argument("--last", action="store_true", help="the session that was opened last")
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument("--output", type=Path, help="also draw the chart into this SVG file")
    parser.add_argument(
        "--why",
        action="store_true",
        help="also print why each call ran on its engine: the terms of the engines' scores",
    )
    parser.add_argument(
        "--events",
        action="store_true",
        help="print the session's newest events, one a line, and draw no picture",
    )


def run(args: argparse.Namespace) -> int:
    """Print the session's events, or print its chart and write the picture where asked."""
    with Client(args.base_url) as client:
        session = Session(client, last(client) if args.last else args.session)
        if args.events:
            print(table(session.events()))
            return 0
        graph = session.graph()
    print(timeline.text(graph))
    if args.why:
        print(why(graph))
    if args.output is not None:
        args.output.write_text(timeline.svg({session.id: graph}))
        print(f"picture: {args.output}")
    return 0


_HEADS = ("call", "engine", "score", "load", "missing", "prefix", "group", "gather", "")


def why(graph: dict[str, Any]) -> str:
    """Why each call ran on its engine: a line for each engine that was considered, in tokens."""
    rows = []
    for call in graph["calls"]:
        for at, one in enumerate(call.get("placement", ())):
            # Where tenants share the server, the load of its engines is not told.
            numbers = [
                f"{one[name]:,.0f}" if name in one else "-"
                for name in ("score", "load", "missing_tokens", "prefix", "group", "gather")
            ]
            note = "chosen" if at == 0 else "" if one["room"] else "no room"
            rows.append((printable(call["name"]), printable(one["engine"]), *numbers, note))
    if not rows:
        return "(no placement is known)"
    return aligned(_HEADS, rows, right=_HEADS[2:-1])


def last(client: Client) -> str:
    """The id of the session that was opened last. Raises UnknownSession if there is none."""
    for row in client.sessions(limit=1):
        return str(row["session_id"])
    raise UnknownSession("the server has no session: run a program first, or give a session's id")


def table(events: Sequence[dict[str, Any]]) -> str:
    """The events of GET /v1/session/{id}/events, one a line.

    The columns are the event's number, its seconds since the session was opened, its name, the
    variable or call that it is about, and its text.
    """
    rows = [
        (
            str(event["n"]),
            f"{event['t']:.3f}",
            str(event["event"]),
            printable(event["about"]),
            printable(event["text"]),
        )
        for event in events
    ]
    return aligned(("n", "seconds", "event", "about", "text"), rows, right=("n", "seconds"))
