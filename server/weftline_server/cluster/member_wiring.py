"""The wiring of a server that shares its store with others; it needs the extra `postgres`."""

from __future__ import annotations

import importlib.metadata
import socket

from weftline_server.cluster.card import Card, digest_of
from weftline_server.cluster.cluster_member import ClusterMember
from weftline_server.cluster.database import ClusterDatabase, ObjectTable
from weftline_server.cluster.departure import Departure
from weftline_server.cluster.shared_journal import SharedJournal
from weftline_server.config import ServerConfig

_EVERYWHERE = ("0.0.0.0", "::", "")


def member_of(
    config: ServerConfig, journal: SharedJournal
) -> tuple[ClusterMember, Departure, ObjectTable]:
    """The membership of a server with this journal, how it ends, and what clients leave there."""
    secret = journal.secret
    card = Card(
        config.cluster.address or _url(config.host, config.port),
        socket.gethostname(),
        _version(),
        "",
        digest_of(config.keys, secret),
    )
    database = ClusterDatabase(config.sessions)
    member = ClusterMember(config.cluster, database, journal, card, secret)
    return member, Departure(member, database, journal), database.objects


def _url(host: str, port: int) -> str:
    """Where other machines reach a server that listens there."""
    host = socket.gethostname() if host in _EVERYWHERE else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _version() -> str:
    try:
        return importlib.metadata.version("weftline")
    except importlib.metadata.PackageNotFoundError:
        return "0.0"  # it is on PYTHONPATH, but not installed
