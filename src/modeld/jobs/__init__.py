"""Work that nobody waits for on a connection: submitted, stored, done when no one else needs the engine.

A job is a list of items for one model. `queue` takes jobs in and tells how they stand; `runner` does their
items at low priority; `rules` holds the decisions; `kinds` says what an item's request means. `mass` and
`batches` with `files` are the ways in, over HTTP.
"""
