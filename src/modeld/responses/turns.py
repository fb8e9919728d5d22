"""From kept items to the turns a model reads. Equal items make equal turns, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from modeld.errors import BadRequest
from modeld.gateway.decoding import invalid, unsupported
from modeld.gateway.families.chat.pictures import Album
from modeld.protocol.tasks import Message, Part, TextPart, ToolCall
from modeld.responses import input_items as i
from modeld.responses.input_items import Item, read

SUMMARY = "Summary of the conversation so far: "
DENIED = "The user denied this call."
UNFINISHED = "The call did not finish."

Unseal = Callable[[str, str], str]
"""Opens a sealed text of a kind, "compaction" or "reasoning". Raises ValueError."""

Exposed = Callable[[str, str], str]
"""Gives the name under which the model knows a tool, from its server's label and its own name."""


def messages(
    before: Iterable[Item],
    given: Iterable[Item],
    instructions: str | None,
    *,
    album: Album | None,
    unseal: Unseal | None = None,
    exposed: Exposed | None = None,
) -> tuple[Message, ...]:
    """Return the turns of a conversation: of the items before a request, and of those that it brings.

    Raises BadRequest, whose param is `input[i]…` for an item of the request and `input` for an earlier one.

    Thoughts and calls belong to the assistant's turn that follows or precedes them: one turn holds the
    thought, the text and all calls, as models were trained to read it. A call at an MCP server is a call and
    its answer, and so is one that the user has denied; those that wait for approval make no turn.
    """
    before, given = tuple(before), tuple(given)
    turns = _Turns(_denied((*before, *given)), album, unseal, exposed or (lambda label, name: name))
    if instructions:
        turns.add(Message(role="system", content=instructions))
    for item in before:
        try:
            turns.read(item, "input")
        except BadRequest as error:
            raise BadRequest(
                f"the earlier item {str(item.get('id'))[:100]} cannot be read again: {error}",
                code=error.code,
                param="input",
            ) from None
    for at, item in enumerate(given):
        turns.read(item, f"input[{at}]")
    turns.check_calls()
    return tuple(turns.made)


def _denied(items: Iterable[Item]) -> dict[str, str]:
    """Return by approval request what the model is told of its denial."""
    found = {}
    for item in items:
        if item["type"] == "mcp_approval_response" and item["approve"] is False:
            reason = item.get("reason")
            found[item["approval_request_id"]] = f"{DENIED} {reason}" if reason else DENIED
    return found


class _Turns:
    """The turns made so far, and the thought that waits for its turn."""

    def __init__(
        self, denied: dict[str, str], album: Album | None, unseal: Unseal | None, exposed: Exposed
    ) -> None:
        self.made: list[Message] = []
        self._denied = denied
        self._album = album
        self._unseal = unseal
        self._exposed = exposed
        self._thought: list[str] = []

    def add(self, turn: Message) -> None:
        """Add a turn; a thought that waits is not of it, and lost."""
        self._thought = []
        self.made.append(turn)

    def read(self, item: Item, where: str) -> None:
        """Add what an item says. Raises BadRequest."""
        match read(item, where):
            case i.Reasoning() as known:
                self._thought += self._thoughts(known, where)
            case i.Message(role=role, content=content):
                self._said(role, content, where)
            case i.Call(call_id=id, name=name, arguments=arguments):
                self._called(ToolCall(id=id, name=name, arguments=arguments))
            case i.CallOutput(call_id=id, output=output):
                answer = _content(output, f"{where}.output", "tool", self._album)
                self.add(Message(role="tool", tool_call_id=id, content=answer))
            case i.McpCall() as call:
                self._ran(item["id"], call.server_label, call.name, call.arguments, _answer(call))
            case i.McpApprovalRequest() as asked if item["id"] in self._denied:
                told = self._denied[item["id"]]
                self._ran(item["id"], asked.server_label, asked.name, asked.arguments, told)
            case i.Compaction(encrypted_content=sealed):
                summary = self._open("compaction", sealed, f"{where}.encrypted_content")
                self.add(Message(role="system", content=SUMMARY + summary))
            case i.Reference(id=id):
                raise invalid(f"{where}.id", f"there is no item {id[:100]}")

    def check_calls(self) -> None:
        """Refuse an output without its call: templates make nonsense of it."""
        known = {call.id for turn in self.made for call in turn.tool_calls}
        for turn in self.made:
            if turn.role == "tool" and turn.tool_call_id not in known:
                id = str(turn.tool_call_id)[:80]
                raise BadRequest(
                    f"No tool call found for function call output with call_id {id}.",
                    code="invalid_value",
                    param="input",
                )

    def _said(self, role: str, content: str | list[i.Content] | None, where: str) -> None:
        if not content and content != "":
            if role == "assistant":  # it said nothing, and may have been cut before it did
                return
            raise invalid(f"{where}.content", f"a message of the {role} needs content")
        read = _content(content, f"{where}.content", role, self._album)
        if role != "assistant":
            # Models know "system" only; OpenAI's newer name means the same.
            self.add(Message(role="user" if role == "user" else "system", content=read))
            return
        last = self.made[-1] if self.made else None
        if last is not None and last.role == "assistant" and last.content is None and not self._thought:
            self.made[-1] = msgspec.structs.replace(last, content=read)
        else:
            self.add(Message(role="assistant", content=read, reasoning=self._joined()))

    def _called(self, call: ToolCall) -> None:
        """Add a call to the assistant's turn, where that is not over, else to a new one."""
        at = self._open_turn()
        if at is None or self._thought:
            self.add(Message(role="assistant", tool_calls=(call,), reasoning=self._joined()))
        else:
            turn = self.made[at]
            self.made[at] = msgspec.structs.replace(turn, tool_calls=(*turn.tool_calls, call))

    def _open_turn(self) -> int | None:
        """Return the place of the assistant's turn if it is the last but for answers, and one is missing."""
        answered: set[str | None] = set()
        for at in range(len(self.made) - 1, -1, -1):
            turn = self.made[at]
            if turn.role == "assistant":
                missing = any(call.id not in answered for call in turn.tool_calls)
                return at if missing or not answered else None
            if turn.role != "tool":
                return None
            answered.add(turn.tool_call_id)
        return None

    def _ran(self, id: str, label: str, name: str, arguments: str, answer: str) -> None:
        self._called(ToolCall(id=id, name=self._exposed(label, name), arguments=arguments))
        self.add(Message(role="tool", tool_call_id=id, content=answer))

    def _thoughts(self, item: i.Reasoning, where: str) -> list[str]:
        if item.content:
            return [part.text for part in item.content]
        if item.encrypted_content and self._unseal is not None:
            return [self._open("reasoning", item.encrypted_content, f"{where}.encrypted_content")]
        return [part.text for part in item.summary]

    def _open(self, kind: str, sealed: str, param: str) -> str:
        try:
            if self._unseal is not None:
                return self._unseal(kind, sealed)
        except ValueError:
            pass
        raise invalid(param, "it was not made by this server for this caller, or was changed since")

    def _joined(self) -> str | None:
        return "\n".join(self._thought) or None


def _answer(call: i.McpCall) -> str:
    """Return what the model is told of a call that was made."""
    if call.output is not None:
        return call.output
    match call.error:
        case None:
            return "" if call.status == "completed" else UNFINISHED
        case str() as words:
            return words
        case {"message": str() as words}:
            return words
        case {"content": content}:
            return _words(content)
        case other:
            return _words(other)


def _words(content: Any) -> str:
    """Return the texts in a tool's blocks of content, or all of it as JSON where there are none."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = [
        block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    return "\n".join(texts) if texts else msgspec.json.encode(content).decode()


def _content(
    content: str | list[i.Content], where: str, role: str, album: Album | None
) -> str | tuple[Part, ...]:
    """Return content as tasks carry it: plain text where there is nothing else."""
    if isinstance(content, str):
        return content
    parts = tuple(_part(part, f"{where}[{at}]", role, album) for at, part in enumerate(content))
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return parts


def _part(part: i.Content, where: str, role: str, album: Album | None) -> Part:
    match part:
        case i.InputText(text=text) | i.OutputText(text=text) | i.PlainText(text=text):
            return TextPart(text=text)
        case i.Refusal(refusal=text):
            return TextPart(text=text)
        case i.Image(image_url=url):
            if role not in ("user", "tool"):
                raise invalid(f"{where}.type", f"pictures go into messages of the user, not of the {role}")
            if url is None:
                raise unsupported(f"{where}.file_id", "there are no files here; send image_url")
            if album is None:
                raise unsupported(f"{where}.image_url", "this model does not see images")
            return album.part(url, f"{where}.image_url")
        case i.File():
            raise unsupported(f"{where}.type", "input_file: messages hold text and images")
        case i.Audio():
            raise unsupported(f"{where}.type", "input_audio: messages hold text and images")
