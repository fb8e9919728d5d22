-- What a model took in earlier runs. Sizes in bytes, times in seconds (updated: since the Unix epoch, UTC).
CREATE TABLE footprint (
  fingerprint TEXT NOT NULL,
  device TEXT NOT NULL,
  ram INTEGER NOT NULL CHECK (ram >= 0),
  vram INTEGER NOT NULL CHECK (vram >= 0),
  load_s REAL NOT NULL,
  runs INTEGER NOT NULL,
  updated REAL NOT NULL,
  PRIMARY KEY (fingerprint, device)
) WITHOUT ROWID;

-- The last effective configuration: its models in order, and when it was saved (no row: never).
CREATE TABLE effective_model (
  position INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  gateway TEXT NOT NULL,
  origin TEXT NOT NULL,
  document TEXT NOT NULL,
  base TEXT NOT NULL
);

CREATE TABLE effective_saved (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  at REAL NOT NULL
);
