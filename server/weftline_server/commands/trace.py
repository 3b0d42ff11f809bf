"""`weftline trace SESSION`: shows the timeline of a session's calls, as text and as an SVG file."""

from __future__ import annotations

import argparse
from pathlib import Path

from weftline import Client, timeline
from weftline.client import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("session", metavar="SESSION", help="id of the session")
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument("--output", type=Path, help="SVG file to write (default: SESSION.svg)")


def run(args: argparse.Namespace) -> int:
    """Print the timeline, write the picture, and print its path."""
    with Client(args.base_url) as client:
        graph = Session(client, args.session).graph()
    print(timeline.text(graph))
    picture = args.output or Path(f"{args.session}.svg")
    picture.write_text(timeline.svg({args.session: graph}))
    print(f"picture: {picture}")
    return 0
