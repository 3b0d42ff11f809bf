"""The tables and functions of sessions in PostgreSQL, as scripts that are run once each.

A released script is never changed: a new version is a new script.
"""

from __future__ import annotations

SCHEMA = "weftline"
FENCED = "WL001"  # another server has taken over: this one may not write any more
NOT_OURS = "WL002"  # a session in a write has another owner

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE SEQUENCE runs;
CREATE TABLE servers (
  number BIGINT PRIMARY KEY,
  address TEXT NOT NULL,
  host TEXT NOT NULL,
  version TEXT NOT NULL,
  models TEXT NOT NULL,
  keys TEXT NOT NULL,
  since TIMESTAMPTZ NOT NULL,
  expires TIMESTAMPTZ NOT NULL,
  fenced BOOLEAN NOT NULL DEFAULT false,
  ended BOOLEAN NOT NULL DEFAULT false,
  written BIGINT NOT NULL DEFAULT 0
);
INSERT INTO servers VALUES (0, '', '', '', '', '', now(), now(), true, true);
COMMENT ON TABLE servers IS 'number 0 is nobody, who owns what was imported';
COMMENT ON COLUMN servers.since IS 'from when on the lease was renewed without a gap';
COMMENT ON COLUMN servers.ended IS 'the server has fenced itself, after its last write';
COMMENT ON COLUMN servers.written IS 'the last group of changes that was committed';
CREATE TABLE sessions (
  number BIGINT PRIMARY KEY,
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  alias TEXT NOT NULL,
  opened DOUBLE PRECISION NOT NULL,
  stays BOOLEAN NOT NULL,
  closed DOUBLE PRECISION,
  bytes BIGINT NOT NULL DEFAULT 0,
  owner BIGINT NOT NULL DEFAULT 0,
  epoch INTEGER NOT NULL DEFAULT 1,
  trial BIGINT,
  deaths INTEGER NOT NULL DEFAULT 0,
  UNIQUE (tenant, id)
) WITH (fillfactor = 80);
COMMENT ON COLUMN sessions.trial IS 'the server that restores this session right now';
COMMENT ON COLUMN sessions.deaths IS 'how many servers died while they restored it';
CREATE INDEX sessions_closed ON sessions (closed) WHERE closed IS NOT NULL;
CREATE INDEX sessions_owner ON sessions (owner) WHERE closed IS NULL;
CREATE INDEX sessions_alias ON sessions (tenant, alias) WHERE alias <> '';
CREATE TABLE records (
  number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session BIGINT NOT NULL,
  body BYTEA NOT NULL
);
CREATE INDEX records_session ON records (session, number);
CREATE TABLE keys (
  tenant TEXT NOT NULL,
  key TEXT NOT NULL,
  digest BYTEA NOT NULL,
  session BIGINT,
  tasks TEXT NOT NULL,
  made DOUBLE PRECISION NOT NULL,
  server BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, key)
);
CREATE INDEX keys_session ON keys (session);
CREATE INDEX keys_made ON keys (made);
"""

# `renew` locks the server's row until the end of the transaction, so no other server can fence it
# meanwhile. `append` raises for a session of another owner, and so undoes the transaction.
_FUNCTIONS = f"""
CREATE FUNCTION renew(me BIGINT, lease_s DOUBLE PRECISION, part BIGINT) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE weftline.servers SET
    since = CASE WHEN expires < clock_timestamp() THEN clock_timestamp() ELSE since END,
    expires = greatest(expires, clock_timestamp() + make_interval(secs => lease_s)),
    written = coalesce(part, written)
  WHERE number = me AND NOT fenced;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'server % is fenced', me USING ERRCODE = '{FENCED}';
  END IF;
END $$;
CREATE FUNCTION append(me BIGINT, numbers BIGINT[], bodies BYTEA[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  ours BIGINT;
BEGIN
  UPDATE weftline.sessions SET bytes = sessions.bytes + added.bytes
  FROM (
    SELECT number, sum(octet_length(body)) AS bytes
    FROM unnest(numbers, bodies) AS one (number, body) GROUP BY number
  ) AS added
  WHERE sessions.number = added.number AND sessions.owner = me;
  GET DIAGNOSTICS ours = ROW_COUNT;
  IF ours <> (SELECT count(DISTINCT one) FROM unnest(numbers) AS one) THEN
    RAISE EXCEPTION 'not all of these sessions are those of server %', me
      USING ERRCODE = '{NOT_OURS}';
  END IF;
  INSERT INTO weftline.records (session, body)
  SELECT number, body FROM unnest(numbers, bodies) WITH ORDINALITY AS one (number, body, place)
  ORDER BY place;
END $$;
"""

_TALLIES = """
CREATE TABLE tallies (
  server BIGINT NOT NULL,
  tenant TEXT NOT NULL,
  sessions BIGINT NOT NULL,
  queued BIGINT NOT NULL,
  bytes BIGINT NOT NULL,
  served BIGINT NOT NULL,
  PRIMARY KEY (server, tenant)
) WITH (fillfactor = 50);
COMMENT ON TABLE tallies IS 'what tenants have at each server, as of its last renewal';
"""

_OBJECTS = """
CREATE TABLE objects (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  previous TEXT NOT NULL,
  body BYTEA NOT NULL,
  size BIGINT NOT NULL,
  expires DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (tenant, id)
);
COMMENT ON TABLE objects IS 'responses and conversations that clients have left here';
CREATE INDEX objects_tenant ON objects (tenant, expires, size);
CREATE INDEX objects_expires ON objects (expires);
"""

MIGRATIONS = (_TABLES + _FUNCTIONS, _TALLIES, _OBJECTS)
