"""Asking vLLM's serving layer: requests in, answers or streams out, failures as modeld's errors."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from modeld.errors import BadRequest, EngineError, ModeldError, WorkerDied
from modeld.worker.loaders.vllm.chunks import Chunk, Fault, decode
from modeld.worker.loaders.vllm.failures import request_error, validation_words


class _Wrapped(msgspec.Struct):
    error: Fault


class Asker:
    """Asks one engine; knows whether it still lives."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def made(self, kind: Any, body: dict[str, Any], field: str) -> Any:
        """Return a request of vLLM's. Raises BadRequest for what vLLM finds wrong with it."""
        try:
            return kind.model_validate(body)
        except Exception as error:
            raise self.error(error, field) from error

    async def whole(self, call: Callable[[], Awaitable[Any]], field: str) -> Any:
        """Return the answer of a call. Raises ModeldError."""
        try:
            answer = await call()
        except ModeldError:
            raise
        except Exception as error:
            raise self.error(error, field) from error
        self._check(answer, field)
        return answer

    async def stream(self, call: Callable[[], Awaitable[Any]], field: str) -> AsyncIterator[Chunk]:
        """Give the chunks of a streamed answer; leaving the iteration aborts the request in the engine.

        Raises ModeldError, WorkerDied where the engine is gone.
        """
        lines = await self.whole(call, field)
        if not inspect.isasyncgen(lines):
            raise EngineError(f"vLLM gave a {type(lines).__name__} where a stream was asked for")
        async with aclosing(lines):
            async for line in lines:
                chunk = decode(str(line))
                if chunk is None:
                    continue
                if chunk.error is not None:
                    raise self.fault(chunk.error, field)
                yield chunk

    def error(self, error: Exception, field: str) -> ModeldError:
        """Return what an exception of vLLM's means."""
        if self._llm.errored or type(error).__name__ == "EngineDeadError":
            return WorkerDied("vLLM's engine has ended")
        if hasattr(error, "errors") and type(error).__name__ == "ValidationError":
            return BadRequest(validation_words(error), code="engine_refused", param=_first_place(error))
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

        found = create_error_response(error).error
        # vLLM takes paths out of messages for strangers; ours are the owner's, but stay as vLLM made them.
        return request_error(found.message, int(found.code), found.param, field)

    def broken(self, words: str) -> ModeldError:
        """Return what an answer without an end means."""
        return WorkerDied("vLLM's engine has ended") if self._llm.errored else EngineError(words)

    def fault(self, fault: Fault, field: str) -> ModeldError:
        """Return what an error inside of a stream means."""
        if self._llm.errored:
            return WorkerDied("vLLM's engine has ended")
        return request_error(fault.message, fault.status, fault.param, field)

    def _check(self, answer: Any, field: str) -> None:
        found = getattr(answer, "error", None)
        if found is not None and hasattr(found, "message"):
            raise self.fault(Fault(found.message, found.code, found.param), field)


def _first_place(error: Any) -> str | None:
    try:
        place = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
    except Exception:
        return None
    return place[0] if place else None
