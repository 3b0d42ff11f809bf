"""How many agents a system sustains: sessions of AIPerf, the limit, the search, and a dry run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.micro import agents
from bench.micro._agent_load import Limit, Timed, ranked
from bench.replay.coding_sessions import (
    CodingSession,
    CodingTurn,
    of_drawn,
    read_aiperf,
)
from bench.replay.trace import Recorded, Turn, drawn
from weftline.errors import InvalidRequest


def generated(folder: Path, sessions: int = 3, turns: int = 2) -> Path:
    """A file in AIPerf's form: sessions that share their first block."""
    rows: list[dict[str, Any]] = []
    for name in range(sessions):
        first = {"input_length": 1100, "output_length": 80, "hash_ids": [0, 10 + name, 20 + name]}
        rows.append({"session_id": f"s{name}", **first, "timestamp": 0.0, "group_id": 7})
        for turn in range(1, turns):
            new = {"input_length": 600 + turn, "output_length": 90, "hash_ids": [50, 51]}
            rows.append({"session_id": f"s{name}", **new, "delay": 1500.0})
    path = folder / "dataset.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sessions_of_aiperf_are_read(tmp_path: Path) -> None:
    """Blocks of a first prompt are texts that sessions share, and later turns have their own."""
    one, two, _ = read_aiperf(generated(tmp_path))
    assert one.turns == (
        CodingTurn((("block 0", 512), ("block 10", 512), ("block 20", 76)), 80, 0.0),
        CodingTurn((("s0 1", 601),), 90, 1.5),
    )
    assert one.turns[0].pieces[0] == two.turns[0].pieces[0]
    (half,) = one.scaled(0.5, 2.0, 1).turns
    assert half.pieces == (("block 0", 256), ("block 10", 256), ("block 20", 38))
    assert (half.output, half.think_s) == (40, 0.0)


@pytest.mark.parametrize("text", ["7", "{}", "no"])
def test_what_is_no_file_of_aiperf_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="is no file of AIPerf"):
        read_aiperf(path)


def test_drawn_sessions_grow() -> None:
    """Each turn adds what the trace does not share, up to a request that begins anew."""
    turns = (
        Turn(input=16_000, output=100),
        Turn(input=16_300, output=50, shared=16_100, think_s=2.0),
        Turn(input=15_500, output=50, shared=15_000),
    )
    assert of_drawn([Recorded("a", turns)]) == [
        CodingSession(
            (
                CodingTurn((("system", 15_000), ("a 0", 1000)), 100, 0.0),
                CodingTurn((("a 1", 200),), 50, 2.0),
            )
        )
    ]
    assert all(one.turns for one in of_drawn(drawn(8)))


def test_a_run_is_within_the_limit_at_its_percentile() -> None:
    """Of ten requests one may be late at the 90th percentile, and a failed one is late and slow."""
    good = [Timed(0.0, 1.0, 3.0, 21) for _ in range(9)]
    limit = Limit(ttft_s=1.0, rate=10.0, percentile=90.0)
    row = limit.row([*good, Timed(0.0, error="gone")])
    assert row == {
        "requests": 10, "failed": 1, "ttft_s": 1.0, "tokens_per_s": 10.0, "within": True,
        "error": "gone",
    }  # fmt: skip
    two = limit.row([*good[:8], Timed(0.0), Timed(0.0)])
    assert (two["ttft_s"], two["tokens_per_s"], two["within"]) == (math.inf, 0.0, False)
    assert not limit.row([Timed(0.0, 1.1, 3.0, 21)])["within"]
    assert not limit.row([Timed(0.0, 1.0, 3.1, 21)])["within"]
    assert [ranked([3, 1, 2], share) for share in (1, 50, 100)] == [1, 2, 3]


@pytest.mark.parametrize(("sustained", "most", "asked"), [
    (11, 64, [1, 2, 4, 8, 16, 12, 10, 11]),
    (0, 64, [1]),
    (6, 6, [1, 2, 4, 6]),
    (40, 64, [1, 2, 4, 8, 16, 32, 64, 48, 40, 44]),
])  # fmt: skip
def test_the_number_is_searched_for(sustained: int, most: int, asked: list[int]) -> None:
    """Doubled up to the first run beyond the limit, then halved to an eighth."""
    tried: dict[int, bool] = {}
    while (number := agents.next_count(tried, most)) is not None:
        tried[number] = number <= sustained
    assert list(tried) == asked


def test_the_ratios_are_to_the_first_system() -> None:
    rows = [
        {"system": name, "agents": n, "within": n <= best}
        for name, best in (("vllm", 4), ("vllm:2", 6), ("vllm:4", 5), ("weftline-vllm", 9))
        for n in (1, 4, 5, 6, 9, 12)
    ]
    assert agents.summary(rows)[-1] == {
        "system": "weftline-vllm", "sustained": 9, "over_alone": 2.25, "over_best_semaphore": 1.5,
    }  # fmt: skip


def test_a_dry_run_on_the_null_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is printed as it is measured, and the ratios end the run."""
    words = [
        "--null", "--trace", str(generated(tmp_path)), "--scale", "0.02", "--think-scale", "0",
        "--ramp", "0", "--systems", "weftline,weftline:1", "--ttft", "20", "--rate", "0.1",
        "--folder", str(tmp_path),
    ]  # fmt: skip
    assert agents.main(words) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("system")]
    assert [row.split("  requests")[0] for row in rows[:6]] == [
        f"system {name}  agents {n}" for name in ("weftline", "weftline:1") for n in (1, 2, 3)
    ]
    assert all("failed 0" in row and "within True" in row for row in rows[:6])
    assert "requests 6" in rows[2]
    assert rows[6:] == [
        "system weftline  sustained 3  over_alone 1.0  over_best_semaphore 1.0",
        "system weftline:1  sustained 3  over_alone 1.0  over_best_semaphore 1.0",
    ]
    assert len(json.loads((tmp_path / "agents.json").read_text())["rows"]) == 8


def test_a_wrong_system_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert agents.main(["--null", "--systems", "vllm:0"]) == 1
    assert "there is no system 'vllm:0'" in capsys.readouterr().err
    assert agents.main(["--null", "--systems", "x", "--url", "x"]) == 1
    assert "--url 'x' is no NAME=URL" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--null", "--url", "x=http://127.0.0.1:9", "--systems", "x", "--turns", "1"]
    assert agents.main(words) == 0
    assert "within False  error ConnectError(" in capsys.readouterr().out


def test_agents_on_a_simulated_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three sessions of 1,100 tokens fit into an H100 with all systems, and its first prompt takes
    0.2 s. The rows name the device's seed, and the last ones compare with the first system."""
    trace, out = generated(tmp_path), tmp_path / "out"
    words = ["--trace", str(trace), "--device", "H100", "--most", "3", "--ttft", "1"]
    systems = "LRU,LRU:1,weftline,weftline and host memory,all contexts fit"
    assert agents.main([*words, "--systems", systems, "--folder", str(out)]) == 0
    (path,) = out.glob("agents-H100-seed-0*")
    rows = json.loads(path.read_text())["rows"]
    assert [row["sustained"] for row in rows if "sustained" in row] == [3] * 5
    first = rows[0]
    assert (first["system"], first["agents"], first["requests"], first["failed"]) == (
        "LRU",
        1,
        2,
        0,
    )
    assert 0.1 < first["ttft_s"] < 0.4 and first["tokens_per_s"] > 60
    assert agents.main([*words, "--systems", "vllm"]) == 1
    assert "there is no system 'vllm'" in capsys.readouterr().err
