"""How Python's garbage collector works in a process that serves requests."""

from __future__ import annotations

import gc

# Each is: objects that are made before a collection of the youngest generation (Python: 700), young
# collections before one of the middle generation (10), and of these before a full one (10). Both
# are full after 700,000 objects. A full collection looks at every object of every session that the
# server keeps: with 1,500 sessions of five calls that had ended and were kept to be shown, one took
# 60 ms. At one for 70,000 new objects, all took a quarter of the server's CPU time.
Thresholds = tuple[int, int, int]
ENGINE: Thresholds = (2000, 10, 35)
# Counted are objects that were made less those that were freed. A session's parts name each other
# in no circle, so a server that keeps as many sessions as it may frees as many as it makes. 64
# sessions of five calls under way made more than 20,000 before they freed some. In turns in a
# process on a busy machine, collections took 123 us of a call's CPU time at 2,000 objects, 86 us
# at 20,000 and none at 50,000.
SERVER: Thresholds = (50_000, 7, 2)


def after_the_start(thresholds: Thresholds) -> None:
    """Leave what was loaded at the start out of every collection, and collect everything rarely.

    What was loaded stays until the end. A full collection took 45 ms with it in the server and
    100 ms in an engine with torch, and stops whatever the process does.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)
