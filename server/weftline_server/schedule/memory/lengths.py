"""How long outputs become, learned for each template of each tenant from what engines have written.

A template is what stays the same from call to call: the call's name, its tools, and the beginning
of its prompt. A client's `max_tokens` is a bound and often far from the length, so it stays the
bound, and nothing is cut by a prediction. The code is synchronous and has no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

# The upper ends of the bins: every length up to 8, then eight bins for each doubling. A length is
# told to within an eighth, and 100 bins reach beyond every context.
ENDS = tuple(range(1, 9)) + tuple(
    (1 << power) * (8 + eighth) // 8 for power in range(3, 17) for eighth in range(1, 9)
)
# A template's own histogram counts from this many outputs on, and before that all of the tenant.
FEWEST, FEWEST_OF_ALL = 3, 10
# The newest output has a weight of one in this many, so that a changed template is followed.
MEMORY = 200.0
# The share of the outputs that is not longer than `most`.
LIKELY = 0.9
# Templates remembered. Beyond that the one that was used longest ago is forgotten.
MOST_TEMPLATES = 4096


@dataclass(frozen=True, slots=True)
class Expected:
    """The tokens of an output: their `mean`, and how many they are at `most` nine times of ten."""

    mean: int
    most: int


@dataclass(slots=True)
class Histogram:
    """The lengths of the outputs of a template. `tokens` and `weight` sum up each bin."""

    count: int = 0
    weight: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, float] = field(default_factory=dict)

    def learn(self, length: int) -> None:
        self.count += 1
        if self.count > MEMORY:
            for bin in self.weight:
                self.weight[bin] *= 1 - 1 / MEMORY
                self.tokens[bin] *= 1 - 1 / MEMORY
        bin = min(bisect_left(ENDS, length), len(ENDS) - 1)
        self.weight[bin] = self.weight.get(bin, 0.0) + 1
        self.tokens[bin] = self.tokens.get(bin, 0.0) + length

    def expect(self) -> Expected:
        """The mean, and the longest length of the bin in which LIKELY of the outputs end."""
        all = sum(self.weight.values())
        seen = 0.0
        for bin in sorted(self.weight):
            seen += self.weight[bin]
            if seen >= LIKELY * all * (1 - 1e-9):
                break
        return Expected(round(sum(self.tokens.values()) / all), ENDS[bin])


class Lengths:
    """The histograms of all templates, by tenant."""

    def __init__(self) -> None:
        self._templates: dict[tuple[str, str], Histogram] = {}  # the last one used is the last
        self._tenants: dict[str, Histogram] = {}

    def learn(self, tenant: str, template: str, length: int) -> None:
        """Note that an output of the template had `length` tokens."""
        if length < 1:
            return
        self._tenants.setdefault(tenant, Histogram()).learn(length)
        found = self._templates.pop((tenant, template), None) or Histogram()
        found.learn(length)
        self._templates[tenant, template] = found
        while len(self._templates) > MOST_TEMPLATES:
            del self._templates[next(iter(self._templates))]
        while len(self._tenants) > MOST_TEMPLATES:
            del self._tenants[next(iter(self._tenants))]

    def expect(self, tenant: str, template: str, bound: int) -> Expected | None:
        """The number of tokens that an output of at most `bound` tokens will have; None where too
        few outputs were seen."""
        found = self._templates.get((tenant, template))
        if found is None or found.count < FEWEST:
            found = self._tenants.get(tenant)
            if found is None or found.count < FEWEST_OF_ALL:
                return None
        told = found.expect()
        return Expected(min(told.mean, bound), min(told.most, bound))
