"""`weftline trace SESSION`: shows a session's timeline as text and SVG, or its events."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weftline import Client, timeline
from weftline.client import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("session", metavar="SESSION", help="id of the session")
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument("--output", type=Path, help="SVG file to write (default: SESSION.svg)")
    parser.add_argument(
        "--events",
        action="store_true",
        help="print the session's newest events, one a line, and draw no picture",
    )


def run(args: argparse.Namespace) -> int:
    """Print the session's events, or print its chart, write the picture, and name its file."""
    with Client(args.base_url) as client:
        session = Session(client, args.session)
        if args.events:
            print(table(session.events()))
            return 0
        graph = session.graph()
    print(timeline.text(graph))
    picture = args.output or Path(f"{args.session}.svg")
    picture.write_text(timeline.svg({args.session: graph}))
    print(f"picture: {picture}")
    return 0


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
            _printable(event["about"]),
            _printable(event["text"]),
        )
        for event in events
    ]
    rows.insert(0, ("n", "seconds", "event", "about", "text"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for number, seconds, event, about, text in rows:
        left = f"{number:>{widths[0]}}  {seconds:>{widths[1]}}"
        lines.append(f"{left}  {event:<{widths[2]}}  {about:<{widths[3]}}  {text}".rstrip())
    return "\n".join(lines)


def _printable(text: str) -> str:
    """`text` with every control character escaped: a model's text must not steer the terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
