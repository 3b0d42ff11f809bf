"""Stores at their limits: a full disk, and a document of 10 MB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.full_disk import FULL, MIB, documents, files_up_to
from tests.e2e.test_stores import ABC, ROWS, Store, item
from weftline_engine import api
from weftline_engine.services.retrieval.sqlite import SqliteTable
from weftline_engine.services.retrieval.stores import Table


@pytest.fixture
def on_disk(tmp_path: Path) -> Table:
    return SqliteTable(tmp_path / "docs")


def test_a_write_that_does_not_fit_leaves_nothing(on_disk: Table) -> None:
    """The op fails with the reason. What was there is found, and later writes succeed."""
    store = Store(on_disk)
    store.ingest(ABC, ROWS)
    many = documents(400)
    with files_up_to(MIB):
        failed = store.ingest([item("a", "new"), *many], np.ones((401, 3)))
        assert isinstance(failed, api.Failed)
        assert failed.error == "EngineFailed" and FULL.search(failed.message), failed.message
        assert [hit["text"] for hit in store.search([1, 0, 0], 1)] == ["one"]
    assert store.fetch(of="many") == [] and store.fetch("a") == ["one"]
    assert store.ingest(many, np.ones((400, 3)))["count"] == 400
    assert len(store.fetch(of="many")) == 400


def test_a_document_of_ten_megabytes(on_disk: Table) -> None:
    """A store takes it: the limit of a text is that of the request that brings it."""
    store, text = Store(on_disk), "é" * (5 * MIB)
    assert store.ingest([item("big", text)], [[1, 0, 0]])["count"] == 1
    [found] = store.search([1, 0, 0])
    assert found["text"] == text
    assert store.fetch("big") == [text]
