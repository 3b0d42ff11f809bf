"""The recipe that extracts invoices: 100 objects by one request, and a text without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cookbook.langchain import extraction
from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded

FORM = '{{"number": {}, "seller": "{}", "total": {}}}'


def rules() -> list[tuple[str, str]]:
    """What a good model finds in each of the recipe's invoices. The last ones come first, since the
    text of invoice 10 has that of invoice 1.
    """
    return [
        (f"Invoice {n}\n", FORM.format(n, extraction.NAMES[n % 4], n * 1.25))
        for n in range(100, 0, -1)
    ]


@pytest.fixture(scope="module")
def url(start_script: StartServer) -> str:
    return start_script([*rules(), ("", "No invoice.")])


def run(url: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, int]:
    """Run the program. Return how many graphs and how many chats it sent."""
    monkeypatch.setattr("sys.argv", ["extraction", *arguments])
    with recorded(url) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        extraction.main()
        return len(proxy.bodies("/v1/submit")), len(proxy.bodies("/v1/chat/completions"))


def test_a_hundred_invoices(url: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Each has its own fields, in the order of the texts."""
    assert run(url, monkeypatch) == (1, 0)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 100
    assert lines[:2] == [
        '{"number":1,"seller":"Birch Mills","total":1.25}',
        '{"number":2,"seller":"Cedar Looms","total":2.5}',
    ]
    assert last == "100 of 100 texts, 6312.50 EUR in all"


def test_a_text_without_an_invoice(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It is named, and the objects of the other texts stay."""
    for name, text in (("a", "Invoice 7\nPay."), ("b", "A letter."), ("c", "Invoice 9\nPay.")):
        (tmp_path / f"{name}.txt").write_text(text)
    assert run(url, monkeypatch, str(tmp_path)) == (1, 0)
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == "2 of 3 texts, 20.00 EUR in all"
    assert printed.err == "text 2 gave no invoice: 'A letter.'\n"
