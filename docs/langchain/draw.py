"""Draws the timelines of the pages in this folder: their chain, 250 ms away from a null engine.

python docs/langchain/draw.py [--step-s 0.03] [--rtt-s 0.25] [--output docs/langchain]
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_weftline import ChatWeftline, accelerate
from weftline import Client, timeline
from weftline.delay import delayed
from weftline.local import local_server

HERE = Path(__file__).parent
REPLIES = {
    "Improve": "Each weft thread crosses every warp thread.",
    "What is wrong": "It does not say which weft.",
    "Write a line": "The weft crosses the warp.",
}
INPUT = {"topic": "weaving"}


def program(tier: str) -> str:
    """The program of a tier's page."""
    page = (HERE / f"{tier}.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def script(folder: Path) -> Path:
    """The rules of the null engine, in a file."""
    path = folder / "script.json"
    path.write_text(json.dumps([{"when": w, "reply": r} for w, r in REPLIES.items()]))
    return path


def chain(llm: ChatWeftline) -> Any:
    """The chain of the pages with another model."""
    lines = program("swapped").splitlines()
    names: dict[str, Any] = {"llm": llm}  # the program is our own page
    kept = (one for one in lines if not one.startswith(("llm =", "print(")))
    exec(compile("\n".join(kept), "swapped.md", "exec"), names)  # noqa: S102
    return names["chain"]


def graphs(url: str) -> Mapping[str, Any]:
    """What the server saw, by tier."""
    with Client(url) as client:
        # A session that is named stays until it is closed.
        session = client.session()
        llm = ChatWeftline(base_url=url, extra_body={"session_id": session.id})
        chain(llm).invoke(INPUT)
        swapped = session.graph()
        session.close()
    seen: queue.SimpleQueue[Any] = queue.SimpleQueue()
    accelerate(chain(ChatWeftline(base_url=url)), on_graph=seen.put).invoke(INPUT)
    return {"swapped": swapped, "accelerated": seen.get(timeout=30)}  # from another thread


def main(arguments: list[str] | None = None) -> None:
    """Write swapped.svg and accelerated.svg."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--step-s", type=float, default=0.03, help="seconds a word")
    parser.add_argument("--rtt-s", type=float, default=0.25)
    parser.add_argument("--output", type=Path, default=HERE)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        options = ("--null-mode", "script", "--null-script", str(script(Path(folder))))
        pace = ("--null-step-s", str(args.step_s))
        with (
            local_server("--engine", "null", *options, *pace) as near,
            delayed(near, args.rtt_s) as url,
        ):
            for tier, graph in graphs(url).items():
                picture = timeline.svg({tier: graph})
                (args.output / f"{tier}.svg").write_text(picture)


if __name__ == "__main__":
    main()
