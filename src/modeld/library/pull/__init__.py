"""Pulling models from a hub, into a folder of their own for each repository and commit.

    <cache>/hub/<org>/<repo>/<commit>/<file>     whole and checked, or not there at all
    <cache>/hub/<org>/<repo>/.incoming/<etag>    what has arrived of a file, for the next try to go on with
    <cache>/hub/<org>/<repo>/.pulled/<key>.json  what a reference stood for when it was pulled

`client` is what the daemon calls; it runs `python -m modeld.library.pull`, so that huggingface-hub is never
imported by the daemon and stopping is certain. `hub` alone speaks with the hub, `transfer` gets one file, and
`record` remembers.
"""
