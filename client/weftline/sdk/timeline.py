"""Draws the times of a session's calls: as a Gantt chart in SVG, and as text for a terminal.

Chart and text are made from the JSON of GET /v1/session/{id}/graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

Graph = Mapping[str, Any]

# One colour for each phase, from Okabe and Ito's palette for the colour-blind.
PHASES = {
    "queue": "#bbbbbb",
    "fill": "#0072b2",
    "generate": "#009e73",
    "transform": "#cc79a7",
    "step": "#e69f00",
}

_OF_CALLS = ("queue", "fill", "generate", "transform")

_LABEL, _CHART, _ROW, _TOP, _NOTE = 190, 620, 20, 58, 150


@dataclass(frozen=True, slots=True)
class Bar:
    """An output of a call, or a step: when it was queued, and the seconds of each phase."""

    name: str
    start: float
    phases: tuple[tuple[str, float], ...]
    note: str

    @property
    def end(self) -> float:
        return self.start + sum(seconds for _, seconds in self.phases)


def bars(graph: Graph) -> list[Bar]:
    """The bars of all steps that have started, in the order in which they were queued."""
    found = []
    for call in graph["calls"]:
        for number, step in enumerate(call["steps"]):
            if step["started_s"] is None:
                continue
            name = call["name"] if len(call["steps"]) == 1 else f"{call['name']}.{number + 1}"
            phases = tuple((phase, float(step[f"{phase}_s"] or 0)) for phase in _OF_CALLS)
            computed = step["prompt_tokens"] - step["cached_tokens"]
            note = f"{step['cached_tokens']} cached, {computed} filled, {step['output_tokens']} out"
            # An older server does not report how many tokens were drafted.
            if drafted := step.get("drafted_tokens"):
                note += f", {step['accepted_tokens']} of {drafted} drafts"
            found.append(Bar(name, step["queued_s"], phases, note))
    found += _steps(graph)
    return sorted(found, key=lambda bar: bar.start)


def _steps(graph: Graph) -> Iterator[Bar]:
    """The bars of the steps beside calls that have ended. An older server has no steps."""
    for step in graph.get("steps", ()):
        if step["queued_s"] is None or step["finished_s"] is None:
            continue
        started = step["queued_s"] if step["started_s"] is None else step["started_s"]
        waited = max(0.0, started - step["queued_s"])
        phases = (("queue", waited), ("step", step["finished_s"] - step["queued_s"] - waited))
        yield Bar(step["name"], step["queued_s"], phases, step["kind"])


def svg(graphs: Mapping[str, Graph]) -> str:
    """One chart for each graph, with its title, one below the other on one time axis."""
    charts = {title: bars(graph) for title, graph in graphs.items()}
    longest = max((_span(chart) for chart in charts.values()), default=0.0) or 1.0
    width = _LABEL + _CHART + _NOTE
    body: list[str] = []
    y = 10
    for title, chart in charts.items():
        body += _chart(title, chart, y, longest)
        y += _TOP + len(chart) * _ROW + 26
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" '
            f'height="{y}" font-family="system-ui, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{y}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


def text(graph: Graph, width: int = 48) -> str:
    """The same chart for a terminal: `·` is waiting, `░` fill, `█` generate, `▒` a step."""
    chart = bars(graph)
    if not chart:
        return "(nothing has run)"
    origin, span = _origin(chart), _span(chart) or 1.0
    marks = {"queue": "·", "fill": "░", "generate": "█", "transform": "▪", "step": "▒"}
    label = max(len(bar.name) for bar in chart)
    lines = []
    for bar in chart:
        line, at = [" "] * width, bar.start - origin
        for phase, seconds in bar.phases:
            first, last = int(at / span * width), int((at + seconds) / span * width)
            # A phase shorter than a column is still drawn, unless it takes less than 0.1 ms.
            for column in range(first, max(last, first + (seconds > 1e-4))):
                line[min(column, width - 1)] = marks[phase]
            at += seconds
        lines.append(
            f"{bar.name:<{label}} |{''.join(line)}| {bar.end - bar.start:6.2f} s  {bar.note}"
        )
    return "\n".join(lines)


def _origin(chart: Sequence[Bar]) -> float:
    return min((bar.start for bar in chart), default=0.0)


def _span(chart: Sequence[Bar]) -> float:
    return max((bar.end for bar in chart), default=0.0) - _origin(chart)


def _chart(title: str, chart: Sequence[Bar], y: int, longest: float) -> list[str]:
    scale = _CHART / longest
    bottom = y + _TOP + len(chart) * _ROW
    out = [
        f'<text x="8" y="{y + 16}" font-size="14" font-weight="bold">{escape(title)}</text>',
        *_legend(y + 32),
    ]
    for tick in _ticks(longest):
        x = _LABEL + tick * scale
        out.append(
            f'<line x1="{x:.1f}" y1="{y + _TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        )
        out.append(
            f'<text x="{x:.1f}" y="{bottom + 13}" text-anchor="middle" fill="#555555">'
            f"{tick:g} s</text>"
        )
    origin = _origin(chart)
    for row, bar in enumerate(chart):
        top = y + _TOP + row * _ROW
        name = bar.name if len(bar.name) <= 28 else bar.name[:27] + "…"
        out.append(f'<text x="{_LABEL - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>')
        x = _LABEL + (bar.start - origin) * scale
        for phase, seconds in bar.phases:
            if seconds * scale < 0.05:
                continue
            out.append(
                f'<rect x="{x:.2f}" y="{top + 2}" width="{seconds * scale:.2f}" '
                f'height="{_ROW - 5}" fill="{PHASES[phase]}"><title>'
                f"{escape(bar.name)}: {phase} {seconds:.3f} s; {bar.note}</title></rect>"
            )
            x += seconds * scale
        out.append(
            f'<text x="{x + 5:.1f}" y="{top + 13}" font-size="9" fill="#555555">{bar.note}</text>'
        )
    return out


def _legend(y: int) -> list[str]:
    out, x = [], 8
    for phase, colour in PHASES.items():
        out.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{x + 14}" y="{y}" fill="#555555">{phase}</text>')
        x += 80
    return out


def _ticks(longest: float) -> list[float]:
    """At most ten round numbers from 0 to `longest` seconds."""
    steps = (m * 10.0**e for e in range(-6, 6) for m in (1, 2, 5))
    step = next(step for step in steps if longest / step <= 10)
    return [round(i * step, 9) for i in range(int(longest / step) + 1)]
