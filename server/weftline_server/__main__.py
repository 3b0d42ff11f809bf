"""`python -m weftline_server` is the command `weftline`."""

from __future__ import annotations

import sys

from weftline_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
