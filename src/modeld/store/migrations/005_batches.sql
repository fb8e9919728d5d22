-- Files that callers have uploaded or batches have written, and batches. Times are seconds since the Unix
-- epoch, UTC. `identity` is the caller's.

-- A file: what it holds lies beside this store under its id. `sha256` is of the content, in hex.
CREATE TABLE file (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  identity TEXT NOT NULL,
  purpose TEXT NOT NULL,
  filename TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  created REAL NOT NULL,
  expires REAL
);
CREATE INDEX file_identity ON file (identity, key);
CREATE INDEX file_expires ON file (expires) WHERE expires IS NOT NULL;

-- A batch; the job of the same id does its work. `body` is JSON: how the batch stands. `expires` is set when it
-- is over.
CREATE TABLE batch (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  identity TEXT NOT NULL,
  over INTEGER NOT NULL DEFAULT 0,
  body BLOB NOT NULL,
  expires REAL
);
CREATE INDEX batch_identity ON batch (identity, key);
CREATE INDEX batch_unfinished ON batch (key) WHERE over = 0;
CREATE INDEX batch_expires ON batch (expires) WHERE expires IS NOT NULL;

-- A job that is held never expires: who submitted it clears it away.
ALTER TABLE job ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
CREATE INDEX job_held ON job (id) WHERE held;
