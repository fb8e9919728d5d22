-- Callers' own names for what they send, as jobs have them: the same name again is the same file or batch.
-- `digest` tells another thing apart that goes by the same name.
ALTER TABLE file ADD COLUMN token TEXT;
ALTER TABLE file ADD COLUMN digest BLOB;
CREATE UNIQUE INDEX file_token ON file (identity, token) WHERE token IS NOT NULL;
ALTER TABLE batch ADD COLUMN token TEXT;
ALTER TABLE batch ADD COLUMN digest BLOB;
CREATE UNIQUE INDEX batch_token ON batch (identity, token) WHERE token IS NOT NULL;

-- An item that has done something which cannot be undone: it is never begun anew.
ALTER TABLE job_item ADD COLUMN final INTEGER NOT NULL DEFAULT 0;
