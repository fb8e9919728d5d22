"""What the daemon remembers over restarts, in one SQLite file with one writer (`db`).

`footprints` and `effective` are the models' own. `responses` and `conversations` keep their items in `chains`
that share their beginnings (`placement` puts them there, `garbage` clears away what nobody holds, `records`
are the shapes); `approvals` are answered once. `jobs` are taken in by `job_intake` and ended by `job_ends`.
"""
