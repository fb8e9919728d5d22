"""Pulling models from a hub, each into a folder of its own, where it lies alone with its projector.

    <cache>/hub/<org>/<repo>/<commit>/<model>/<file>     whole and checked, or not there at all
    <cache>/hub/<org>/<repo>/.incoming/<etag>            what has arrived of a file so far
    <cache>/hub/<org>/<repo>/.pulled/<key>.json          what a reference stood for when it was pulled

A file that is in several of these folders takes its place once.

`client` is what the daemon calls; it runs `python -m modeld.library.pull`, so that huggingface-hub is never
imported by the daemon and stopping is certain. `hub` alone speaks with the hub, `transfer` gets one file,
`shared` takes what other programs have pulled, and `record` remembers.
"""
