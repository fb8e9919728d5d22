-- What the Responses API keeps. Times are seconds since the Unix epoch, UTC. `identity` is the caller's.

-- One item of a response or of a conversation, as JSON. It never changes; links say where it stands.
CREATE TABLE item (
  key INTEGER PRIMARY KEY,
  identity TEXT NOT NULL,
  id TEXT,
  data BLOB NOT NULL
);
CREATE INDEX item_id ON item (id);

-- A chain is a list of items that only grows at its end. A fork goes on from the place `at` of its parent,
-- and counts on from there: what is before that place is read in the parent. Keys are never used again.
CREATE TABLE chain (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  parent INTEGER REFERENCES chain (key),
  at INTEGER NOT NULL
);
CREATE INDEX chain_parent ON chain (parent, at);

CREATE TABLE link (
  chain INTEGER NOT NULL REFERENCES chain (key),
  place INTEGER NOT NULL,
  item INTEGER NOT NULL REFERENCES item (key),
  PRIMARY KEY (chain, place)
) WITHOUT ROWID;
CREATE INDEX link_item ON link (item);

-- A response: its input is at the places start to middle of its chain, its output at middle to upto, what it
-- answers to before start. It holds all places before upto. `body` is the response's JSON without its output.
CREATE TABLE response (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  identity TEXT NOT NULL,
  status TEXT NOT NULL,
  body BLOB NOT NULL,
  created REAL NOT NULL,
  expires REAL,
  chain INTEGER NOT NULL REFERENCES chain (key),
  start INTEGER NOT NULL,
  middle INTEGER NOT NULL,
  upto INTEGER NOT NULL,
  background INTEGER NOT NULL,
  streamed INTEGER NOT NULL,
  logged INTEGER NOT NULL,
  log_expires REAL
);
CREATE INDEX response_chain ON response (chain, upto);
CREATE INDEX response_expires ON response (expires) WHERE expires IS NOT NULL;
CREATE INDEX response_log ON response (log_expires) WHERE logged;
CREATE INDEX response_unfinished ON response (key) WHERE status IN ('queued', 'in_progress');

-- A response at work. The row outlives a response that is deleted meanwhile, so that its end is not stored.
-- `base` is the chain of the conversation that it answers to, as it was at the beginning.
CREATE TABLE run (
  response TEXT PRIMARY KEY,
  owner TEXT NOT NULL,
  beat REAL NOT NULL,
  conversation TEXT,
  base INTEGER
) WITHOUT ROWID;

-- The events of a background stream, for those who read it again.
CREATE TABLE log (
  response INTEGER NOT NULL,
  number INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (response, number)
) WITHOUT ROWID;

-- A conversation is what its chain holds before upto.
CREATE TABLE conversation (
  id TEXT PRIMARY KEY,
  identity TEXT NOT NULL,
  metadata TEXT NOT NULL,
  created REAL NOT NULL,
  chain INTEGER NOT NULL REFERENCES chain (key),
  upto INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX conversation_chain ON conversation (chain, upto);

-- Chains that somebody let go of and logs whose response is gone: to be looked through, a few rows at a time.
CREATE TABLE garbage (
  kind TEXT NOT NULL CHECK (kind IN ('chain', 'log')),
  key INTEGER NOT NULL,
  PRIMARY KEY (kind, key)
) WITHOUT ROWID;
