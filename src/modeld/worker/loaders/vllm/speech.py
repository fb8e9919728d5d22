"""Transcription and translation by vLLM: whisper and models like it."""

from __future__ import annotations

import io
from typing import Any

from modeld.errors import BadRequest
from modeld.protocol.tasks import Segment, TranscribeTask, Transcript, Usage
from modeld.worker.loader import Emit
from modeld.worker.loaders.vllm.ask import Asker
from modeld.worker.loaders.vllm.serving import Serving
from modeld.worker.loaders.whispercpp import languages

FIELD = "file"


class Speech:
    """Writes down what is said. `most_s`: the longest recording taken, in seconds."""

    def __init__(self, serving: Serving, asker: Asker, name: str, most_s: float) -> None:
        self._serving = serving
        self._asker = asker
        self._name = name
        for part in (serving.transcription, serving.translation):
            part.max_audio_decode_duration_s = int(most_s)

    async def run(self, task: TranscribeTask, emit: Emit) -> None:
        """Answer with Segments, the Transcript, then Usage. Raises BadRequest."""
        from starlette.datastructures import UploadFile
        from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
        from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

        if task.words:
            raise BadRequest(
                "models of the loader vllm give no times of words; ask for segments",
                code="unsupported_parameter",
                param="timestamp_granularities",
            )
        if not task.media:
            raise BadRequest("the recording is empty: 0 bytes", code="invalid_audio", param=FIELD)
        served = self._serving.translation if task.translate else self._serving.transcription
        timed = bool(served.model_cls.supports_segment_timestamp)
        body: dict[str, Any] = {
            "file": UploadFile(io.BytesIO(task.media), filename="audio"),
            "model": self._name,
            "prompt": task.prompt or "",
            "temperature": task.temperature or 0.0,
            "response_format": "verbose_json" if timed else "json",
        }
        if task.language:
            # By name or with a region too, as the other loader of such models takes them.
            body["language"] = languages.code(task.language) or task.language
        kind = TranslationRequest if task.translate else TranscriptionRequest
        request = self._asker.made(kind, body, FIELD)
        ask = served.create_translation if task.translate else served.create_transcription
        try:
            answer = await self._asker.whole(lambda: ask(task.media, request), FIELD)
        except BadRequest as error:
            raise blamed(error) from None
        await self._told(answer, task, request, emit)

    async def _told(self, answer: Any, task: TranscribeTask, request: Any, emit: Emit) -> None:
        usage = getattr(answer, "usage", None)
        length = float(getattr(answer, "duration", None) or getattr(usage, "seconds", 0) or 0)
        segments = segments_of(answer, length)
        for segment in segments:
            await emit(segment)
        spoken = getattr(answer, "language", None) or request.language or task.language or "en"
        await emit(Transcript(languages.NAMES.get(str(spoken), str(spoken)), length))
        await emit(Usage(round(length * 1000), sum(len(segment.tokens) for segment in segments)))


def blamed(error: BadRequest) -> BadRequest:
    """Return vLLM's refusal of a recording or of a language with the place it concerns."""
    if error.param is not None:
        return error
    if "anguage" in error.message:
        return BadRequest(error.message, code="invalid_value", param="language")
    return BadRequest(f"invalid value for 'file': {error.message}", code="invalid_audio", param=FIELD)


def segments_of(answer: Any, length: float) -> list[Segment]:
    """Return the segments of an answer; a model that gives no times has one, of the whole `length`."""
    found = getattr(answer, "segments", None)
    if not found:
        text = str(answer.text)
        return [Segment(0, 0, 0.0, length, text)] if text else []
    return [
        Segment(
            number,
            int(one.seek),
            float(one.start),
            float(one.end),
            str(one.text),
            tuple(int(token) for token in one.tokens),
            float(one.temperature or 0.0),
            float(one.avg_logprob or 0.0),
            float(one.compression_ratio or 0.0),
            float(one.no_speech_prob or 0.0),
        )
        for number, one in enumerate(found)
    ]
