"""Fixtures of the fault tests: the server in this process as in tests/null, and real servers."""

from __future__ import annotations

from tests.null.conftest import serve as serve
