"""`weftline trace SESSION`: what a session's calls did, as text and as an SVG in this folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from weftline import Client, timeline
from weftline.client import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` reads."""
    parser.add_argument("session", metavar="SESSION", help="the session's id")
    parser.add_argument("--base-url", help="the server (default: WEFTLINE_BASE_URL, or this one)")
    parser.add_argument("--output", type=Path, help="the picture (default: SESSION.svg)")


def run(args: argparse.Namespace) -> int:
    """Print the chart, write the picture, and say where it is."""
    with Client(args.base_url) as client:
        graph = Session(client, args.session).graph()
    print(timeline.text(graph))
    picture = args.output or Path(f"{args.session}.svg")
    picture.write_text(timeline.svg({args.session: graph}))
    print(f"picture: {picture}")
    return 0
