"""The command `weftline`: imports the module of the sub-command that is asked for, and runs it.

Exit codes: 0 done, 1 failed (one sentence says why), 2 wrong usage or a part of weftline that is
not installed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from weftline.contract.errors import WeftlineError
from weftline_engine.own.models import ModelUnavailable
from weftline_server.extras import extra_of, install

_COMMANDS = {
    "serve": "serve models to applications",
    "join": "run an engine here for a server that runs elsewhere",
    "pull": "download a model and make it ready to serve",
    "doctor": "say what this machine can run, and what is missing",
    "sessions": "list the sessions that a server knows",
    "trace": "show what a session did, call by call",
    "advise": "say why prompts are not cached, and what to change",
    "compare": "say what a program of yours gains on a server",
    "bench": "run a benchmark of the source checkout",
}

_FAILED, _MISSING, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, or the process's own if None, and return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        return _run(argv)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name or "")
        if extra is None:
            raise
        _say(f"this needs {error.name}, which is not installed: run `{install(extra)}`")
        return _MISSING
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED


def _run(argv: list[str]) -> int:
    command = argv[0] if argv and argv[0] in _COMMANDS else None
    # No other command's module is imported, so `doctor` and `--help` work where the packages of the
    # others are not installed.
    module: Any = import_module(f"weftline_server.commands.{command}") if command else None
    parser = argparse.ArgumentParser(
        prog="weftline",
        description="Serves LLM applications: the graph of their calls runs as one in the server.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage or not installed, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"weftline {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, purpose in _COMMANDS.items():
        sub = commands.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:])
        if name == command:
            module.add_arguments(sub)
    if not argv:
        parser.print_help()
        return 0
    args = parser.parse_args(argv)
    args.words = argv[1:]  # `serve` starts further servers with them
    try:
        return int(module.run(args))
    except (ModelUnavailable, WeftlineError) as error:
        _say(str(error))
        return _FAILED
    except OSError as error:
        named = str(error.filename or "")
        if not named or not any(named in word for word in argv):
            raise  # the operator has not named this file
        _say(f"{named}: {(error.strerror or 'it cannot be opened').lower()}")
        return _FAILED


def _version() -> str:
    try:
        return importlib.metadata.version("weftline")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed: run from a source checkout)"


def _say(sentence: str) -> None:
    print(f"weftline: {sentence}", file=sys.stderr)
