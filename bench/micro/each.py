"""The time of an `each` over many items: what one item costs the server beside its model's work.

    python -m bench.micro.each [--items 10000]

The null engine answers at once, so nearly all of the time is the server's: 10,000 calls enter one
session's graph, are scheduled and answered, and their texts come back as one list.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import httpx

from weftline.local import local_server

TIMEOUT_S = 900.0


def submit(items: int) -> dict[str, object]:
    """A submit whose one step asks a short question about each item."""
    call = {
        "name": "say",
        "prompt": "Say {{input:item}}: {{output:said}}",
        "placeholders": [
            {"name": "item", "in_out": "in", "semantic_var_id": "item"},
            {
                "name": "said",
                "in_out": "out",
                "semantic_var_id": "said",
                "sampling": {"max_tokens": 4},
            },
        ],
    }
    each = {
        "kind": "each",
        "name": "all",
        "over": {"value": [f"item {number}" for number in range(items)]},
        "item": "item",
        "body": {"calls": [call]},
        "collect": {"said": "texts"},
        "max_items": items,
    }
    return {"steps": [each], "get": ["texts"], "close": True}


def seconds(items: int) -> float:
    """Seconds from the request to the answer, with all texts. The server is new."""
    with local_server("--engine", "null") as url, httpx.Client(timeout=TIMEOUT_S) as http:
        http.post(f"{url}/v1/submit", json=submit(10)).raise_for_status()  # imports are not counted
        began = time.perf_counter()
        answer = http.post(f"{url}/v1/submit", json=submit(items))
        took = time.perf_counter() - began
        answer.raise_for_status()
        texts = answer.json()["values"]["texts"]
    assert len(texts) == items, f"{len(texts)} texts came back"
    return took


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a line. The exit code is 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000)
    args = parser.parse_args(argv)
    took = seconds(args.items)
    load = os.getloadavg()[0]
    each = 1000 * took / args.items
    print(f"each over {args.items:,} items: {took:.1f} s, {each:.2f} ms an item, load {load:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
