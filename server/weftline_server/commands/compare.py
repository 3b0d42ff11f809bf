"""`weftline compare`: runs a program plain and accelerated on one engine, and says what it gains.

The program is not edited: its models are put on the server, and each of its chains is accelerated.
It runs near the server, at some distances from it, and beside other users.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx2

from weftline.contract.errors import EngineUnavailable
from weftline.kit.program_run import ACCELERATED, PLAIN
from weftline.kit.server import default_base_url, without_v1
from weftline.sdk.delay import delayed
from weftline_server.commands.other_users import other_users
from weftline_server.commands.program_side import ProgramFailed, ProgramSide
from weftline_server.commands.tables import aligned, printable

ROUND_TRIPS_MS = (0.0, 50.0, 250.0)
USERS = 16
TURNS = 3
SIDES = (PLAIN, ACCELERATED)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program", type=Path, metavar="PROGRAM.py", help="a LangChain or LlamaIndex program"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    parser.add_argument(
        "--base-url", help="the server's URL (default: WEFTLINE_BASE_URL, else this machine)"
    )
    parser.add_argument(
        "--plain-url", help="where the plain program runs, such as vLLM alone (default: the server)"
    )
    parser.add_argument("--model", default="default", help="the model's name at the server")
    parser.add_argument("--plain-model", help="its name at --plain-url (default: that of --model)")
    parser.add_argument(
        "--rtt-ms",
        type=_numbers,
        default=ROUND_TRIPS_MS,
        metavar="MS,...",
        help="added round trips (default: 0,50,250)",
    )
    parser.add_argument(
        "--users", type=int, default=USERS, help=f"users beside the program (default: {USERS})"
    )
    parser.add_argument(
        "--turns", type=int, default=TURNS, help=f"pairs of runs of each row (default: {TURNS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, a row a line")


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and beside whom the program runs."""

    rtt_ms: float = 0.0
    users: int = 0

    def __str__(self) -> str:
        if self.users:
            return f"beside {self.users} users"
        return f"{self.rtt_ms:g} ms away" if self.rtt_ms else "near the server"


@dataclass(frozen=True, slots=True)
class Row:
    """The seconds of the runs at one place, by side, in pairs."""

    place: Setting
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Plain over accelerated, of each pair."""
        pairs = zip(self.seconds[PLAIN], self.seconds[ACCELERATED], strict=True)
        return [plain / fast for plain, fast in pairs]

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        plain, fast = (median(self.seconds[side]) for side in SIDES)
        found = self.ratios
        if len(found) > 1:
            low, _, high = quantiles(found, n=4, method="inclusive")
            spread = f"{low:.2f} to {high:.2f}"
        else:
            spread = ""
        return str(self.place), f"{plain:.2f} s", f"{fast:.2f} s", f"{median(found):.2f}", spread


HEADS = ("", "plain", "accelerated", "times as fast", "quartiles")


def run(args: argparse.Namespace) -> int:
    """Print what the program's chains would gain, and then what they gained. 1 if texts differ."""
    server = without_v1(args.base_url or default_base_url())
    _check(server)
    urls = {PLAIN: without_v1(args.plain_url or server), ACCELERATED: server}
    models = {PLAIN: args.plain_model or args.model, ACCELERATED: args.model}
    command = [str(args.program), *args.arguments]
    places = [Setting(ms) for ms in args.rtt_ms]
    if args.users:
        places.append(Setting(users=args.users))
    rows: list[Row] = []
    reports: dict[str, dict[str, Any]] = {}
    try:
        for place in places:
            with _sides(urls, models, command, place.rtt_ms) as sides:
                firsts = {side: one.run() for side, one in sides.items()}  # fills caches
                if not reports:
                    reports = firsts
                    if not args.json:
                        print("\n".join(before(args.program, firsts)), flush=True)
                    if not gains(firsts):
                        return 0
                rows.append(measured(place, sides, urls, models, args.turns))
                if args.json:
                    print(json.dumps(asdict(rows[-1])), flush=True)
    except ProgramFailed as error:
        print(f"weftline: {printable(str(error))}")
        return 1
    if not args.json:
        print(aligned(HEADS, [row.cells() for row in rows]))
        print("\n".join([*equalities(reports), verdict(rows)]))
    return 0 if same_texts(reports) else 1


def _check(server: str) -> None:
    """Raise WeftlineError if no server answers."""
    try:
        httpx2.get(f"{server}/health/ready", timeout=10).raise_for_status()
    except httpx2.HTTPError as error:
        raise EngineUnavailable(
            f"no server is ready at {server} ({error}): start one with `weftline serve`, or give "
            "its address with --base-url"
        ) from None


@contextmanager
def _sides(
    urls: dict[str, str], models: dict[str, str], command: Sequence[str], rtt_ms: float
) -> Iterator[dict[str, ProgramSide]]:
    """The two processes that run the program, as far from their servers as asked."""
    with ExitStack() as stack:
        sides = {}
        for side in SIDES:
            url = urls[side]
            if rtt_ms:
                url = stack.enter_context(delayed(url, rtt_ms / 1e3))
            made = ProgramSide(side, url, models[side], command, dict(os.environ))
            sides[side] = stack.enter_context(made)
        yield sides


def measured(
    place: Setting,
    sides: dict[str, ProgramSide],
    urls: dict[str, str],
    models: dict[str, str],
    turns: int,
) -> Row:
    """Run both sides in pairs. The side that begins alternates."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(turns):
        for side in SIDES[:: -1 if turn % 2 else 1]:
            with other_users(urls[side], models[side], place.users):
                seconds[side].append(sides[side].run()["seconds"])
    return Row(place, seconds)


def gains(reports: dict[str, dict[str, Any]]) -> bool:
    """Whether there can be a gain: the program makes two calls or more."""
    return len(reports[PLAIN]["texts"]) > 1


def before(program: Path, reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What is known of the program once it has run on both sides."""
    calls = len(reports[PLAIN]["texts"])
    yield f"{program.name}: {calls} model {'call' if calls == 1 else 'calls'} in a run"
    if calls == 0:
        yield "nothing to compare: it calls no model through LangChain or LlamaIndex"
    elif calls == 1:
        yield "nothing to gain: one call"
    for note in reports[ACCELERATED]["notes"]:
        if note["calls"] > 1 or len(reports[ACCELERATED]["notes"]) == 1:
            yield printable(f"{note['name']}:")
            yield from (f"    {printable(line)}" for line in note["lines"])
    if calls > 1:
        yield "the first run of each side is not counted, so that both find their prompts cached"


def verdict(rows: Sequence[Row]) -> str:
    """The gains in one line."""
    gains = (f"{median(row.ratios):.2f} times as fast {row.place}" for row in rows)
    return f"accelerated: {', '.join(gains)}"


def same_texts(reports: dict[str, dict[str, Any]]) -> bool:
    """Whether the models gave the same answers on both sides, in any order."""
    plain, fast = (sorted(reports[side]["texts"]) for side in SIDES)
    return plain == fast


def equalities(reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What is equal on both sides, and what is not."""
    if same_texts(reports):
        yield f"answers: equal ({len(reports[PLAIN]['texts'])})"
    else:
        yield (
            "answers: they differ. With a temperature of 0 and --dtype float32 they should not; "
            "sampled answers do, and bfloat16 may round another way in another batch"
        )
    if reports[PLAIN]["events"] == reports[ACCELERATED]["events"]:
        yield f"callbacks: equal ({sum(reports[PLAIN]['events'].values())})"
    else:
        yield "callbacks: they differ"
        for kind in sorted({*reports[PLAIN]["events"], *reports[ACCELERATED]["events"]}):
            counts = [reports[side]["events"].get(kind, 0) for side in SIDES]
            if counts[0] != counts[1]:
                yield printable(f"    {kind}: {counts[0]} plain, {counts[1]} accelerated")
