"""How long `weftline bench on-vllm` takes, told before it begins, by what it took on two cores.

The seconds are of idle cores that have AVX2. A busy machine takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness.workload import QUICK, Scale

# A run begins when the servers are at rest: vLLM's threads spin for a second after an answer.
REST_S = 1.3
# The three servers start once, and vLLM compiles its model at each start.
START_S = 180.0
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Share:
    """A workload's part of the estimate: its runs, each of `run_s` seconds at quick sizes."""

    workload: str
    runs: int
    run_s: float

    def seconds(self, scale: Scale) -> float:
        """The seconds of its runs at a scale. A run is as long as its tokens, which grow with the
        lengths and with the counts."""
        larger = (scale.length / QUICK.length) * (scale.count / QUICK.count)
        return self.runs * (self.run_s * larger + REST_S)


def estimate(shares: Sequence[Share], scale: Scale) -> str:
    """A line with the minutes in all, then those of each workload, the longest first."""
    found = {share: share.seconds(scale) for share in shares}
    whole = sum(found.values()) + (START_S if shares else 0.0)
    parts = [
        f"{share.workload} {_minutes(seconds)} ({share.runs} runs)"
        for share, seconds in sorted(found.items(), key=lambda one: -one[1])
    ]
    return f"about {_minutes(whole)} minutes on two idle cores with AVX2: {', '.join(parts)}"


def _minutes(seconds: float) -> str:
    return f"{seconds / MINUTE_S:.2g}" if seconds < 100 * MINUTE_S else f"{seconds / MINUTE_S:.0f}"
