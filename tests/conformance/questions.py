"""What the clients are asked to ask for: prompts, a tool, a schema, all as narrow as a tiny model needs."""

from __future__ import annotations

from typing import Any, Literal

import openai
from pydantic import BaseModel

STEADY: dict[str, Any] = {"temperature": 0}
"""The likeliest token always, so that a test that passes once passes again."""

ASK: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]


class Weather(BaseModel):
    """Arguments of the tool, and the form of an answer: no free text, which a tiny model may not end."""

    city: Literal["Paris", "Rome"]
    celsius: bool


TOOL = openai.pydantic_function_tool(Weather, name="get_weather", description="Tell the weather in a city")
CLOCK = {"type": "function", "function": {"name": "get_time", "description": "Tell the time"}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = Weather.model_json_schema() | {"additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}


def user(text: str) -> list[dict[str, Any]]:
    """Return a conversation of one question."""
    return [{"role": "user", "content": text}]
