"""The share of repeated tokens in an application's prompts: Table 1 of the Parrot paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.harness.texts import Count


def repeated_share(prompts: Sequence[str], count: Count) -> float:
    """Tokens in paragraphs that stand in at least two prompts, by all tokens.

    A paragraph is a line, so one long document in two prompts counts and a sentence in two
    documents does not.
    """
    lines = [[line for line in prompt.splitlines() if line.strip()] for prompt in prompts]
    seen = Counter(line for prompt in lines for line in set(prompt))
    total = repeated = 0
    for prompt in lines:
        for line in prompt:
            tokens = count(line)
            total += tokens
            repeated += tokens if seen[line] > 1 else 0
    return repeated / total if total else 0.0
