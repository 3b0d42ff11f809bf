"""Sessions on disk: their events as JSON, an SQLite file, and the replay after a restart."""
