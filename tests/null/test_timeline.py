"""A session's graph as a picture and as text."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from weftline import timeline

GRAPH: dict[str, Any] = {
    "calls": [
        {"name": "late", "steps": [{"started_s": None}]},
        {
            "name": "<sum>",
            "steps": [
                {
                    "queued_s": 3.0,
                    "started_s": 3.5,
                    "queue_s": 0.5,
                    "fill_s": 0.5,
                    "generate_s": 1.0,
                    "transform_s": 0.0,
                    "prompt_tokens": 30,
                    "cached_tokens": 10,
                    "output_tokens": 7,
                }
            ],
        },
        {
            "name": "map",
            "steps": [
                {
                    "queued_s": 1.0,
                    "started_s": 1.0,
                    "queue_s": 0.0,
                    "fill_s": 1.0,
                    "generate_s": 1.0,
                    "transform_s": 0.0,
                    "prompt_tokens": 20,
                    "cached_tokens": 0,
                    "output_tokens": 5,
                }
            ],
        },
    ]
}


def test_text_shows_each_phase_in_its_place() -> None:
    """A second is four columns, and the earliest call is first. Calls that have not run are left
    out.
    """
    assert timeline.text(GRAPH, width=16) == (
        "map   |░░░░████        |   2.00 s  0 cached, 20 filled, 5 out\n"
        "<sum> |        ··░░████|   2.00 s  10 cached, 20 filled, 7 out"
    )


def test_accepted_drafts_are_shown() -> None:
    """An engine that drafted nothing shows nothing of it."""
    call = GRAPH["calls"][1]
    steps = [
        {**call["steps"][0], "drafted_tokens": drafted, "accepted_tokens": 3} for drafted in (0, 4)
    ]
    shown = timeline.bars({"calls": [{**call, "steps": steps}]})
    assert [bar.note.partition(" out")[2] for bar in shown] == ["", ", 3 of 4 drafts"]


def test_the_picture_is_svg_on_one_time_axis() -> None:
    """Widths are in proportion, names are escaped, and every bar has a label."""
    root = ElementTree.fromstring(timeline.svg({"one": GRAPH, "two": {"calls": []}}))
    bars = [e for e in root.iter() if e.tag.endswith("rect") and len(e)]
    assert [bar[0].text for bar in bars] == [
        "map: fill 1.000 s; 0 cached, 20 filled, 5 out",
        "map: generate 1.000 s; 0 cached, 20 filled, 5 out",
        "<sum>: queue 0.500 s; 10 cached, 20 filled, 7 out",
        "<sum>: fill 0.500 s; 10 cached, 20 filled, 7 out",
        "<sum>: generate 1.000 s; 10 cached, 20 filled, 7 out",
    ]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert widths == [155.0, 155.0, 77.5, 77.5, 155.0]


def test_nothing_has_run() -> None:
    """An empty session has an empty chart, not an error."""
    assert timeline.text({"calls": []}) == "(nothing has run)"
