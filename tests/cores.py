"""How the suites share a machine: each worker of a parallel run keeps to its own cores."""

from __future__ import annotations

import os
from functools import cache


@cache
def keep_to_own_cores() -> None:
    """Pin a pytest-xdist worker, and every process that it starts, to its share of the cores.

    An engine runs one thread per core that it may use. Two engines with two threads each on two
    cores wait for each other at every operator, which takes up to 100 times as long as the work.
    Without pytest-xdist nothing changes.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    cores = sorted(os.sched_getaffinity(0))
    if worker and workers > 1 and len(cores) >= workers:
        os.sched_setaffinity(0, cores[int(worker) :: workers])
