"""vLLM's failures as modeld's errors. Pure: exceptions are known by their words and by vLLM's own table."""

from __future__ import annotations

import re
from typing import Any

from modeld.errors import BadRequest, EngineError, LoadFailed, ModeldError, ModelUnavailable

_EXTRAS = re.compile(r"\s*\((?:parameter|value)=.*\)$", re.DOTALL)
_TOO_LONG = re.compile(
    r"maximum context length is (?P<limit>\d+).*?contains (?P<least>at least )?(?P<given>\d+) (?P<unit>\w+)",
    re.DOTALL,
)
_LONG_WORDS = (
    "maximum context length",
    "maximum model length",
    "longer than the maximum",
    "context length (",
)
_SCHEMA_WORDS = (
    "xgrammar",
    "guidance",
    "JSON schema",
    "json_schema",
    "Grammar",
    "grammar",
    "structured_outputs",
)
_TEMPLATE_WORDS = ("Jinja", "jinja", "template")

_PASSING = (
    "out of memory",
    "OutOfMemoryError",
    "Free memory on device",
    "No available memory for the cache",
    "Available memory on node",
    "Cannot allocate memory",
    "Address already in use",
    "CUDA error",
    "NCCL",
)
"""Words of failures to load that may not come again: memory and devices that others use."""


def request_error(message: str, status: int, param: str | None, field: str) -> ModeldError:
    """Return the error for vLLM's answer to a request.

    `field` is what the input of this kind of request is called ("messages", "prompt", "input", …).
    """
    words = _EXTRAS.sub("", message).strip() or f"vLLM answered with status {status} and no word"
    if any(text in words for text in _LONG_WORDS):
        return too_long(words, field)
    if status == 503:
        return ModelUnavailable(f"the engine is not ready: {words}", retry_after=1.0)
    if status >= 500 and status != 501:
        return EngineError(words)
    if any(text in words for text in _SCHEMA_WORDS) and field == "messages":
        return BadRequest(
            f"the engine cannot enforce this JSON schema: {words}",
            code="invalid_json_schema",
            param="response_format",
        )
    if any(text in words for text in _TEMPLATE_WORDS) and field == "messages":
        return BadRequest(
            f"the model's chat template refuses these messages: {words}",
            code="template_error",
            param="messages",
        )
    return BadRequest(words, code="engine_refused", param=_PARAMS.get(param or "", param))


_PARAMS = {
    "max_completion_tokens": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "input_tokens": None,
    "input_text": None,
}
"""vLLM's names of fields that callers of modeld know by another."""


def too_long(words: str, field: str) -> BadRequest:
    """Return the error for an input over the model's context."""
    if (found := _TOO_LONG.search(words)) and found["unit"] != "characters":
        words = (
            f"the request has {found['least'] or ''}{found['given']} tokens, the model's context holds "
            f"{found['limit']}; "
            "shorten it, or raise max_model_len"
        )
    return BadRequest(words, code="context_length_exceeded", param=field)


def load_error(words: str, said: str | None) -> LoadFailed:
    """Return the error of a load: `words` of the exception here, `said` those of the engine's processes."""
    text = " ".join((said or words).split())
    # The one here only says that the engine has failed; what the engine said is the reason.
    passing = any(word in text or word in words for word in _PASSING)
    hint = ""
    if passing and "memory" in text:
        hint = "; give the model more memory (num_gpus), or lower max_model_len or max_num_seqs"
    return LoadFailed(f"vLLM cannot load the model: {text[:1500]}{hint}", permanent=not passing)


def validation_words(error: Any) -> str:
    """Return what a pydantic ValidationError says, in one line a field."""
    try:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    except Exception:
        return " ".join(str(error).split())
    lines = []
    for item in found:
        where = ".".join(str(part) for part in item.get("loc", ()) if not str(part).startswith("function-"))
        text = str(item.get("msg", "")).removeprefix("Value error, ")
        lines.append(f"{where}: {text}" if where else text)
    return "; ".join(dict.fromkeys(lines))
