"""One side of `weftline compare`: runs a program of the user as often as asked, and reports.

    python -m weftline.kit.program_run {plain|accelerated} [--model NAME] PROGRAM.py [ARGUMENT ...]

The server's address is in WEFTLINE_BASE_URL. The process runs the program once for each line that
it reads, and answers each line with one JSON object on its standard output. What the program prints
is part of that object. Each framework of the program has a module `program_watch` in its adapter,
which puts the program's models on the server and watches what runs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import runpy
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from traceback import extract_tb

PLAIN, ACCELERATED = "plain", "accelerated"
# By the name that a program imports: the adapter's module, and the distribution that brings it.
_WATCHES: Mapping[str, tuple[str, str]] = {
    "langchain": ("langchain_weftline.trace.program_watch", "langchain-weftline"),
    "llama_index": (
        "llama_index.llms.weftline.trace.llama_program_watch",
        "llama-index-llms-weftline",
    ),
}


@dataclass(frozen=True, slots=True)
class Side:
    """How the program's models run: `accelerated` or plain, and the server's name of the model."""

    accelerated: bool
    model: str


@dataclass(slots=True)
class ChainNote:
    """What is known of a chain before it runs: its requests, and what stays in the client."""

    name: str
    calls: int
    lines: list[str]


@dataclass(slots=True)
class ProgramWatch:
    """What one run of the program does.

    `seconds` counts while a chain runs, chains side by side once. `texts` are the answers of the
    models, and `events` counts the callbacks by their kind.
    """

    seconds: float = 0.0
    texts: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    notes: list[ChainNote] = field(default_factory=list)
    printed: str = ""
    error: str | None = None
    _active: int = 0
    _began: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def enter(self) -> None:
        """A chain begins."""
        with self._lock:
            if self._active == 0:
                self._began = time.perf_counter()
            self._active += 1

    def leave(self) -> None:
        """A chain has ended."""
        with self._lock:
            self._active -= 1
            if self._active == 0:
                self.seconds += time.perf_counter() - self._began

    @contextmanager
    def chain(self) -> Iterator[None]:
        """A chain runs as long as the block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def answer(self, text: str) -> None:
        """A model has answered."""
        with self._lock:
            self.texts.append(text)

    def event(self, kind: str) -> None:
        """A callback of the framework was called."""
        with self._lock:
            self.events[kind] += 1

    def note(self, note: ChainNote) -> None:
        """The same chain is noted once."""
        if note not in self.notes:
            self.notes.append(note)

    def report(self) -> str:
        """The run as one line of JSON."""
        shown = {f: getattr(self, f) for f in ("seconds", "texts", "events", "printed", "error")}
        return json.dumps({**shown, "notes": [asdict(one) for one in self.notes]})


class Current:
    """The watch of the present run. Adapters keep this object, because a process runs several."""

    def __init__(self) -> None:
        self.watch = ProgramWatch()


def frameworks(program: Path) -> list[str]:
    """The frameworks whose names the program's folder mentions, or all that are installed."""
    sources = [program, *program.parent.glob("*.py")]
    text = "\n".join(one.read_text(errors="replace") for one in sources)
    named = [one for one in _WATCHES if one in text]
    return named or [one for one in _WATCHES if importlib.util.find_spec(f"{one}_core")]


def prepare(side: Side, names: list[str]) -> Current:
    """Let the adapters put the models of programs on the server. Raises SystemExit without one."""
    current = Current()
    for name in names:
        module, distribution = _WATCHES[name]
        try:
            watched = importlib.import_module(module)
        except ModuleNotFoundError as error:
            sys.exit(f"the program uses {name}: run `pip install {distribution}` ({error})")
        watched.prepare(side, current)
    return current


def run(program: Path, arguments: list[str], current: Current) -> ProgramWatch:
    """Run the program as a script, and return what was seen. Its exceptions are part of that."""
    watch = current.watch = ProgramWatch()
    printed = io.StringIO()
    sys.argv = [str(program), *arguments]
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(program), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            watch.error = f"it exited with {ended.code}"
    except Exception as error:
        own = [
            one.lineno for one in extract_tb(error.__traceback__) if one.filename == str(program)
        ]
        at = f" (line {own[-1]})" if own else ""
        watch.error = f"{type(error).__name__}: {error}{at}"
    watch.printed = printed.getvalue()
    return watch


def main() -> None:
    """Run the program once for each line of standard input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=(PLAIN, ACCELERATED))
    parser.add_argument("--model", default="default")
    parser.add_argument("program", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    # What the program or a library writes to the file itself must not mix with the reports.
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(args.program.resolve().parent))
    side = Side(args.side == ACCELERATED, args.model)
    current = prepare(side, frameworks(args.program))
    for _ in sys.stdin:
        print(run(args.program, args.arguments, current).report(), file=reports, flush=True)


if __name__ == "__main__":
    main()
