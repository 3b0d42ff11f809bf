"""`weftline sessions`: lists the sessions that a server still knows, the newest first.

`weftline sessions export` and `import` move sessions between the stores of `serve --store`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weftline import Client
from weftline.contract.errors import InvalidRequest
from weftline_server.commands.tables import aligned, printable
from weftline_server.journal.backend import is_shared, opened_store
from weftline_server.journal.cipher import Cipher
from weftline_server.journal.store import JournalStoreConfig
from weftline_server.journal.transfer import exported, imported

_SHOWN = 20
HEADS = (
    "session", "state", "name", "began", "duration", "calls", "tokens in", "cached", "out", "error"
)  # fmt: skip
NAME_CHARS = 48  # of a name that are shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("export", "import"),
        help="write the sessions of --store to standard output, a line of JSON each and not "
        "encrypted, or read them from standard input; no server may use a file meanwhile",
    )
    parser.add_argument("--store", metavar="FILE", help="the file or the database of serve --store")
    parser.add_argument("--store-key-file", metavar="FILE", help="the key file of serve")
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument(
        "--limit", type=int, default=_SHOWN, help=f"sessions to list (default: {_SHOWN})"
    )
    parser.add_argument(
        "--text", default="", help="only sessions whose prompts or values contain this"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one session a line")


def run(args: argparse.Namespace) -> int:
    """Print a line for each session."""
    if args.action is not None:
        return _moved(args)
    with Client(args.base_url) as client:
        rows = client.sessions(limit=args.limit, text=args.text)
    if args.json:
        for row in rows:
            print(json.dumps(row))
    elif rows:
        print(table(rows))
    elif args.text:
        print("no session that the server still knows contains this text")
    else:
        print("no session is open, and none was closed a short time ago")
    return 0


def _moved(args: argparse.Namespace) -> int:
    """Export or import."""
    if args.store is None:
        raise InvalidRequest(f"sessions {args.action} needs --store FILE", param="store")
    if args.action == "export" and not (is_shared(args.store) or Path(args.store).exists()):
        raise InvalidRequest(f"there is no file {args.store}", param="store")
    cipher = Cipher.of(args.store_key_file or "")
    store = opened_store(JournalStoreConfig(path=args.store), cipher)
    try:
        if args.action == "export":
            for line in exported(store):
                print(line)
        else:
            added, there = imported(store, sys.stdin)
            print(f"{added} sessions added, {there} were there already")
    finally:
        store.close()
    return 0


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of GET /v1/sessions, one a line. A session with steps counts them as calls. Times of
    day are local ones; the duration of an open session is that so far.
    """
    return aligned(
        HEADS,
        [
            (
                str(row["session_id"]),
                str(row["state"]),
                _shortened(printable(row["name"])),
                time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["opened"])),
                f"{row['age_s']:.1f} s{' so far' if row['state'] == 'open' else ''}",
                str(row["calls"] + row["steps"]),
                str(row["prompt_tokens"]),
                str(row["cached_tokens"]),
                str(row["output_tokens"]),
                row["error"] or "",
            )
            for row in rows
        ],
        right=("duration", "calls", "tokens in", "cached", "out"),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 1]}…"
