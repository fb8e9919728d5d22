"""From the input of a request to the items that are kept.

An item is kept as it came, with what OpenAI adds to it (its type, an id, a status, empty lists) and without
what is null, so that what is shown of it later is what OpenAI's own types demand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modeld.gateway.decoding import check_free, invalid
from modeld.responses.input_items import Item, read
from modeld.responses.turns import messages

__all__ = ["PREFIXES", "Item", "kept", "messages"]

PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
    "mcp_list_tools": "mcpl_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
    "compaction": "cmp_",
}
"""By type of item, how its id begins."""

_WITH_STATUS = ("message", "function_call", "function_call_output")


def kept(raw: str | list[Item], new_id: Callable[[str], str], param: str = "input") -> list[Item]:
    """Return the items of a request's input as they are kept. Raises BadRequest naming `input[i]`.

    Text is one message of the user's. A reference is left as its type and the id it names. Any id of up to
    512 characters stays.
    """
    if isinstance(raw, str):
        raw = [{"type": "message", "role": "user", "content": raw}]
    return [_kept(given, f"{param}[{at}]", new_id) for at, given in enumerate(raw)]


def _kept(given: Item, where: str, new_id: Callable[[str], str]) -> Item:
    item = {key: value for key, value in given.items() if value is not None}
    kind = item.setdefault("type", "item_reference" if item.keys() == {"id"} else "message")
    if kind == "item_reference":
        read(item, where)
        return {"type": kind, "id": item["id"]}
    if not isinstance(kind, str) or kind not in PREFIXES:
        raise invalid(f"{where}.type", f"there is no item {str(kind)[:60]!r} here")
    check_free(item, where)
    read(item, where)
    if not item.get("id"):
        item["id"] = new_id(PREFIXES[kind])
    if kind in _WITH_STATUS:
        item.setdefault("status", "completed")
    match kind:
        case "message":
            item["content"] = _content(item.get("content", []), item["role"] == "assistant")
        case "function_call_output" if not isinstance(item["output"], str):
            item["output"] = _content(item["output"], False)
        case "reasoning":
            item["summary"] = _typed(item.get("summary", []), "summary_text")
            if "content" in item:
                item["content"] = _typed(item["content"], "reasoning_text")
        case "mcp_call":
            _complete_call(item)
    return item


def _complete_call(item: Item) -> None:
    """Give a call all the keys that one has."""
    error = item.setdefault("error", None)
    if isinstance(error, str):  # as older servers sent it
        item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": error}]}
    for key in ("approval_request_id", "output"):
        item.setdefault(key, None)
    item.setdefault("status", "completed" if error is None else "failed")


def _typed(parts: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return parts with the type that is the only one there is, and that some leave out."""
    return [{"type": kind, "text": part["text"]} for part in parts]


def _content(content: str | list[dict[str, Any]], model: bool) -> list[dict[str, Any]]:
    """Return content as parts of the type that belongs to the speaker: the model, or anybody else."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return [_part(part, "output_text" if model else "input_text") for part in content]


def _part(given: dict[str, Any], text: str) -> dict[str, Any]:
    part = {key: value for key, value in given.items() if value is not None}
    if part["type"] == "refusal" and text == "input_text":  # only a model's words are that
        part = {"type": text, "text": part["refusal"]}
    if part["type"] in ("text", "input_text", "output_text"):
        part["type"] = text
    match part["type"]:
        case "output_text":
            part.setdefault("annotations", [])
            part.setdefault("logprobs", [])
        case "input_text":
            part.pop("annotations", None)
            part.pop("logprobs", None)
        case "input_image":
            part.setdefault("detail", "auto")
    return part
