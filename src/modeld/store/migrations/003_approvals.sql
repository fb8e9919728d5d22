-- Calls of an MCP server's tools that were put to somebody for approval: what exactly, and whether it was answered.
-- Times in seconds since the Unix epoch.
CREATE TABLE approval (
  identity TEXT NOT NULL,
  id TEXT NOT NULL,
  digest BLOB NOT NULL,
  answered INTEGER NOT NULL DEFAULT 0,
  expires REAL,
  PRIMARY KEY (identity, id)
) WITHOUT ROWID;

CREATE INDEX approval_expires ON approval (expires);
