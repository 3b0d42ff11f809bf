"""The servers and stores of other suites, on which the benchmarks run here."""

from __future__ import annotations

from tests.cores import keep_to_own_cores
from tests.integrations import conftest as adapters

keep_to_own_cores()
echo_url = adapters.echo_url
