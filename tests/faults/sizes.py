"""How much the fault tests do: a little in CI, all of it with FAULTS=full."""

from __future__ import annotations

import os

FULL = os.environ.get("FAULTS") == "full"

KILLS = 200 if FULL else 20
APPLICATIONS = 6000 if FULL else 600
SESSIONS = 10_000 if FULL else 200
AT_ONCE = 1000 if FULL else 150  # sessions at the same time
