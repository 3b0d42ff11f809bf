"""The bound of a ratio: what is left of a baseline's run without round trips and recomputation.

A server on the same engine cannot remove more by knowing the program. It may pass the bound where
it fills a prompt before its inputs are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.harness.metrics import Metric
from bench.harness.runs import Run
from bench.harness.stage import App, Call

# Of two calls that overlap by less than this share of the shorter one, the later follows the other:
# clocks of the server and of the client differ.
OVERLAP = 0.1
# Calls that share a step count its seconds each. Where recomputation seems to take a larger share
# of the run than this, the estimate says nothing.
MOST_AGAIN = 0.5


def bound(metric: Metric, theirs: Run, ours: Sequence[Run], *, visits: bool) -> float | None:
    """How many times better the metric of the run `theirs` were with the least that must be done.

    `ours` are runs of the same texts by a server on the same engine. With `visits` each call's
    answer must go to the client, so no round trip can be saved. None if the calls of a run are not
    known, if the server does more at once than the program, or if the estimate says nothing.
    """
    if not all(app.calls for run in (theirs, *ours) for app in run.apps) or not ours:
        return None
    pairs = [pair for run in ours for pair in zip(theirs.apps, run.apps, strict=False)]
    if any(depth(their.calls) > depth(our.calls) for their, our in pairs):
        return None
    measured, again_s = metric.value(theirs.apps), _again_s(theirs, ours)
    if again_s is None or again_s > MOST_AGAIN * _span(theirs.apps):
        return None
    share = 1.0 - again_s / _span(theirs.apps)
    left = metric.value([_left(app, theirs.delay_ms / 1e3, share, visits) for app in theirs.apps])
    if measured is None or left is None:
        return None
    return left / measured if metric.higher else measured / left


def depth(calls: Sequence[Call]) -> int:
    """The most calls that follow one another."""
    found: list[tuple[float, float, int]] = []  # start, end and place in the longest chain
    for call in sorted(calls, key=lambda one: one.start):
        end = call.start + call.seconds
        place = 1
        for start, before, at in found:
            shorter = min(call.seconds, before - start)
            if call.start >= before - OVERLAP * shorter:
                place = max(place, at + 1)
        found.append((call.start, end, place))
    return max(place for _, _, place in found)


def _left(app: App, round_trip_s: float, share: float, visits: bool) -> App:
    """The application with what cannot be removed, when a `share` of all time remains."""
    seconds = app.seconds
    if not visits:  # the server starts a call when the one before it is done
        seconds -= _gaps(app.calls) + (depth(app.calls) - 1) * round_trip_s
    return replace(app, start=app.start * share, seconds=seconds * share)


def _gaps(calls: Sequence[Call]) -> float:
    """The seconds between the first start and the last end in which no call was under way."""
    gaps, until = 0.0, min(call.start for call in calls)
    for call in sorted(calls, key=lambda one: one.start):
        gaps += max(0.0, call.start - until)
        until = max(until, call.start + call.seconds)
    return gaps


def _again_s(theirs: Run, ours: Sequence[Run]) -> float | None:
    """The seconds in which `theirs` computed prompt tokens that the best of the others had cached.
    None if the others do not tell what they had cached, or how long filling took.

    A token takes what one took in the phase of filling. Calls that share a step count its seconds
    each, so this is rather too much than too little.
    """
    told = [
        run
        for run in ours
        if "fill" in run.phases_s and all(call.cached is not None for call in _calls(run))
    ]
    if not told:
        return None
    # vLLM leaves the count out where nothing was cached.
    again = _computed(theirs) - min(_computed(run) for run in told)
    each = [run.phases_s["fill"] / max(1, _computed(run)) for run in told]
    return max(0, again) * min(each)


def _computed(run: Run) -> int:
    """The prompt tokens that were not cached."""
    return sum(call.prompt - (call.cached or 0) for call in _calls(run))


def _calls(run: Run) -> list[Call]:
    return [call for app in run.apps for call in app.calls]


def _span(apps: Sequence[App]) -> float:
    return max(app.start + app.seconds for app in apps) - min(app.start for app in apps)
