-- Work that nobody waits for on a connection. Times are seconds since the Unix epoch, UTC. `identity` is the
-- caller's.

-- A job: `items` pieces of work for one model. `waiting` counts those that nobody has taken yet (or that were
-- given back), `done` and `failed` those that ended; what is left is being worked on. `taken` counts how often
-- an item was taken: who has got least goes first. Keys are never used again.
CREATE TABLE job (
  key INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  identity TEXT NOT NULL,
  kind TEXT NOT NULL,
  model TEXT NOT NULL,
  detail BLOB NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('pending', 'processing', 'done', 'error', 'cancelled')),
  items INTEGER NOT NULL,
  waiting INTEGER NOT NULL CHECK (waiting >= 0),
  taken INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  code TEXT,
  error TEXT,
  created REAL NOT NULL,
  begun REAL,
  ended REAL,
  deadline REAL,
  expires REAL,
  owner TEXT,
  beat REAL,
  token TEXT,
  digest BLOB
);
CREATE INDEX job_waiting ON job (model, identity, taken, key) WHERE waiting > 0;
CREATE INDEX job_waiting_oldest ON job (model, identity, key) WHERE waiting > 0;
CREATE INDEX job_unfinished ON job (created) WHERE status IN ('pending', 'processing');
CREATE INDEX job_deadline ON job (deadline) WHERE status IN ('pending', 'processing') AND deadline IS NOT NULL;
CREATE INDEX job_expires ON job (expires) WHERE expires IS NOT NULL;
CREATE INDEX job_owner ON job (owner) WHERE owner IS NOT NULL;
-- Each caller's own names for what was submitted: the same name again is the same job.
CREATE UNIQUE INDEX job_token ON job (identity, token) WHERE token IS NOT NULL;

-- A piece of a job's work. `state`: 0 waits, 1 is taken, 2 done, 3 failed, 4 cancelled. The request goes when
-- the item has ended; `attempts` counts how often an engine began with it. A result is JSON; so is the error
-- of one that failed.
CREATE TABLE job_item (
  key INTEGER PRIMARY KEY,
  job INTEGER NOT NULL REFERENCES job (key),
  place INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 4),
  attempts INTEGER NOT NULL DEFAULT 0,
  request BLOB,
  result BLOB,
  UNIQUE (job, place)
);
CREATE INDEX job_item_waiting ON job_item (job, place) WHERE state = 0;
CREATE INDEX job_item_taken ON job_item (job) WHERE state = 1;
