"""The recipes that ask about a folder, as a reader runs them: real files and real embeddings."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from llama_index.core import Settings

from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded
from tests.integrations.test_llama_ahead import CHAT, SUBMIT

Ask = Callable[..., list[str]]
# The framework's words about what it added: to a new index, and to one that is there.
ADDED = {
    "ask_a_folder": ("2 files were new or had changed", "1 files were new or had changed"),
    "ask_a_folder_langchain": ("2 passages were new", "1 passages were new"),
}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a recipe with a reader's arguments, and gives what it prints.

    It runs in this process, because its imports take seconds.
    """
    for name in ("_llm", "_embed_model", "_node_parser", "_transformations"):
        monkeypatch.setattr(Settings, name, None)  # the recipe sets them: put back afterwards

    def run(recipe: str, folder: Path, question: str, *options: str) -> list[str]:
        monkeypatch.setattr("sys.argv", [recipe, str(folder), question, *options])
        import_module(f"cookbook.rag.{recipe}").main()
        printed = capsys.readouterr()
        assert "Loading files" in printed.err  # the progress bar
        return printed.out.splitlines()

    return run


@pytest.mark.parametrize("recipe", ADDED)
def test_a_folder_is_asked_and_only_added_to(
    recipe: str, ask: Ask, tmp_path: Path, start_script: StartServer
) -> None:
    """The second run embeds the new file alone; the answer's calls are one request."""
    (tmp_path / "rivers.md").write_text("# Rivers\n\nThe Tiber flows through Rome.\n")
    (tmp_path / "hills.html").write_text("<p>The Palatine is a hill of Rome.</p>")
    rules = [
        ("Original Answer", "Through Rome, past its hills."),
        ("Answer so far", "Through Rome, past its hills."),
        ("", "Through Rome."),
    ]
    new, more = ADDED[recipe]
    with recorded(start_script(rules)) as proxy:
        url = ("--url", proxy.url)
        first = ask(recipe, tmp_path, "Where does the Tiber flow?", *url)
        assert first[:2] == [new, "Through Rome, past its hills."]
        assert (len(proxy.bodies(SUBMIT)), proxy.bodies(CHAT)) == (1, [])
        (tmp_path / "seas.txt").write_text("The sea lies west of Rome.")
        second = ask(recipe, tmp_path, "Where does the Tiber flow?", *url)
        assert second[0] == more
        assert second[2:][0] == "source: rivers.md" and len(second) == 5


def a_pdf(text: str) -> bytes:
    """A PDF of one page that says `text`."""
    drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>"
    )
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        page,
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
        font,
    ]
    made, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        made
        + b"xref\n0 6\n0000000000 65535 f \n%strailer\n<< /Size 6 /Root 1 0 R >>\n" % table
        + b"startxref\n%d\n%%%%EOF" % len(made)
    )


def test_the_plain_llm_and_a_pdf(ask: Ask, tmp_path: Path, start_script: StartServer) -> None:
    """`--llm plain` makes a request a call, with the text of the PDF and an equal answer."""
    (tmp_path / "rivers.md").write_text("The Tiber flows through Rome.")
    (tmp_path / "seas.pdf").write_bytes(a_pdf("The sea lies west of Rome."))
    rules = [("Answer so far", "To the sea, west of Rome."), ("", "Through Rome.")]
    with recorded(start_script(rules)) as proxy:
        options = ("--url", proxy.url, "--llm", "plain")
        said = ask("ask_a_folder_langchain", tmp_path, "Where does it flow?", *options)
        assert said[:2] == ["2 passages were new", "To the sea, west of Rome."]
        assert proxy.bodies(SUBMIT) == []
        prompts = [body["messages"][0]["content"] for body in proxy.bodies(CHAT)]
        assert len(prompts) == 2
        assert any("The sea lies west of Rome." in prompt for prompt in prompts)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [("ask_a_folder", "does not exist"), ("ask_a_folder_langchain", "no folder")],
)
def test_an_unknown_folder(recipe: str, says: str, ask: Ask, tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises((SystemExit, ValueError), match=says):
        ask(recipe, tmp_path / "nowhere", "What?", "--url", "http://127.0.0.1:9")
