"""The public name of the proxy that delays: `python -m weftline.delay --help`."""

from __future__ import annotations

from weftline.sdk.delay import (
    delayed,
    main,
    proxy,
)

__all__ = [
    "delayed",
    "main",
    "proxy",
]

if __name__ == "__main__":
    main()
