"""The end of a batch: its answers, from the queue's store to files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modeld.ids import new_id
from modeld.jobs.batches.answers import Answers
from modeld.jobs.batches.records import Record
from modeld.jobs.files.routes import Room
from modeld.jobs.files.shelf import Part, Shelf, unbroken
from modeld.store.files import StoredFile
from modeld.store.job_records import Job
from modeld.store.jobs import Jobs

PAGE = 64
"""Answers in memory at once."""


@dataclass(frozen=True)
class Written:
    """Files that lie on the disk and are not stored yet; `changes` are those of the batch by them."""

    files: tuple[StoredFile, ...]
    changes: dict[str, Any]

    def drop(self, shelf: Shelf) -> None:
        """Remove them: nobody will ever know of them."""
        for file in self.files:
            shelf.remove(file.id)


async def write(room: Room, store: Jobs, identity: str, record: Record, job: Job) -> Written:
    """Write what became of each request of a job that is over.

    Raises StoreFailed and OSError, and leaves nothing then.
    """
    answers, files = Answers(room.shelf, record.batch.id), list[StoredFile]()
    ids: dict[str, str | None] = {"output": None, "error": None}
    try:
        after = -1
        while results := await store.results(job.key, after, PAGE):
            await unbroken(answers.add, results)
            after = results[-1].place
        for part, word in ((answers.good, "output"), (answers.bad, "error")):
            if part is not None:
                file = _described(room, identity, record, part, word)
                files.append(file)
                ids[word] = file.id
                await unbroken(part.keep, file.id)
    except BaseException:
        for file in files:
            room.shelf.remove(file.id)
        raise
    finally:
        answers.drop()
    changes = {"output_file_id": ids["output"], "error_file_id": ids["error"], "usage": answers.usage}
    return Written(tuple(files), changes)


def _described(room: Room, identity: str, record: Record, part: Part, word: str) -> StoredFile:
    now = room.clock.time()
    return StoredFile(
        id=new_id("file-"),
        identity=identity,
        purpose="batch_output",
        filename=f"{record.batch.id}_{word}.jsonl",
        bytes=part.size,
        sha256=part.sha256,
        created=now,
        expires=None if record.keep_s is None else now + record.keep_s,
    )
