"""The HTTP face: OpenAI's API over the pool of models.

A request passes `middleware` (request id, access, errors, metrics), is decoded by its family into a task, and
is answered by that family's encoder from the events of the pool's stream. Nothing here knows an engine.
"""
