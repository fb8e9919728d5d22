"""Answers to approval requests: which call each is about, and whether it may be run. Pure.

The call that is run is the one that was asked about: its arguments come from the request that is stored, or,
where the caller carries it, from a copy that the store's digest vouches for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from modeld.errors import BadRequest
from modeld.gateway.decoding import invalid
from modeld.responses.inputs import Item
from modeld.store.approvals import Verdict, digest


class Answer(NamedTuple):
    """One answered request: the call it is about."""

    request: str
    label: str
    name: str
    arguments: str
    approve: bool

    @property
    def call(self) -> tuple[str, bytes]:
        """The request's id, and what stands for its call in the store."""
        return self.request, digest(self.label, self.name, self.arguments)


def answers(before: Iterable[Item], given: Iterable[Item], labels: Collection[str]) -> tuple[Answer, ...]:
    """Return the answers among a request's items, in their order.

    `labels`: the servers of this request. Raises BadRequest for an answer without its request in the
    chain, one that was given before, and an approved call of a server that the request does not name.
    """
    given = tuple(given)
    requests: Mapping[str, Item] = {
        item["id"]: item for item in (*before, *given) if item["type"] == "mcp_approval_request"
    }
    done = {
        str(item.get("approval_request_id"))
        for item in before
        if item["type"] in ("mcp_approval_response", "mcp_call") and item.get("approval_request_id")
    }
    found: dict[str, Answer] = {}
    for at, item in enumerate(given):
        if item["type"] != "mcp_approval_response":
            continue
        id, param = str(item["approval_request_id"]), f"input[{at}].approval_request_id"
        if id not in requests:
            raise BadRequest(
                "The following MCP approval requests have approval responses but weren't passed as input: "
                f"{id[:100]}",
                code="invalid_value",
                param=param,
            )
        if id in done or id in found:
            raise invalid(param, f"the approval request {id[:100]} has been answered already")
        request = requests[id]
        answer = Answer(
            id, request["server_label"], request["name"], request["arguments"], bool(item["approve"])
        )
        if answer.approve and answer.label not in labels:
            raise invalid(
                "tools",
                f"the approved call is one of the MCP server {answer.label!r}; "
                "send that tool again, with its authorization",
            )
        found[id] = answer
    return tuple(found.values())


def check_verdicts(verdicts: Mapping[str, Verdict]) -> None:
    """Raise BadRequest unless all were claimed."""
    for id, verdict in verdicts.items():
        match verdict:
            case "answered":
                raise invalid("input", f"the approval request {id[:100]} has been answered already")
            case "unknown":
                raise invalid("input", f"there is no approval request {id[:100]}, or its time is over")
            case "changed":
                raise invalid(
                    "input", f"the approval request {id[:100]} was for another call than the one sent back"
                )
            case "claimed":
                pass
