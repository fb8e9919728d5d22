"""What a worker can be asked to do, and what it answers with: the engine-neutral shape of inference.

Tasks and events know nothing of HTTP. `/v1/chat/completions` and `/v1/responses` are two encoders over the
same events. All structs are frozen; new fields come last and have defaults, so an older peer can read them.
Events are encoded as arrays because one is sent for every token.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from modeld.errors import BadRequest


class _Task(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


# --- tasks --------------------------------------------------------------------------------------------------


class TextPart(_Task, tag="text", frozen=True, omit_defaults=True, kw_only=True):
    """A piece of text inside a message."""

    text: str


class ImagePart(_Task, tag="image", frozen=True, omit_defaults=True, kw_only=True):
    """A picture as a `data:` URL; anything else has been fetched or refused before it gets here."""

    url: str


Part: TypeAlias = TextPart | ImagePart


class ToolCall(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """A call the model made in an earlier turn; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class FunctionTool(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """A function the model may call; `parameters` is a JSON Schema object or None for no arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Message(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """One turn. The role "developer" has become "system" by the time a message gets here."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class ToolChoice(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """Whether the model may, must or must not call; `name` is set exactly when mode is "function"."""

    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


class TextFormat(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """The form of the answer; `schema` is set exactly when kind is "json_schema"."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Sampling(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """Sampling parameters; None means "the engine's default"."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] = {}


class ChatTask(_Task, tag="chat", frozen=True, omit_defaults=True, kw_only=True):
    """Continue a conversation.

    `top_logprobs` None: no log probabilities; 0: those of the chosen tokens only; up to 20.
    `engine_options` are passed to the engine as they are (e.g. llama.cpp's `cache_prompt`).
    """

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    n: int = 1
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    format: TextFormat = TextFormat()
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    template_kwargs: dict[str, Any] = {}
    engine_options: dict[str, Any] = {}


class CompletionTask(_Task, tag="completion", frozen=True, omit_defaults=True, kw_only=True):
    """Continue one raw prompt (text, or token ids of this model)."""

    prompt: str | tuple[int, ...]
    sampling: Sampling = Sampling()
    n: int = 1
    echo: bool = False
    suffix: str | None = None
    top_logprobs: int | None = None
    engine_options: dict[str, Any] = {}


class EmbedTask(_Task, tag="embed", frozen=True, omit_defaults=True, kw_only=True):
    """Turn each input (text, or token ids of this model) into a vector.

    `dimensions`: the length wanted, None for the model's own. Answer: one Vector for each input, in any
    order, then Usage.
    """

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None


class RerankTask(_Task, tag="rerank", frozen=True, omit_defaults=True, kw_only=True):
    """Score each document by how well it answers the query. Answer: one Score for each, then Usage."""

    query: str
    documents: tuple[str, ...]


class TokenizeTask(_Task, tag="tokenize", frozen=True, omit_defaults=True, kw_only=True):
    """Split a text into the model's tokens; `special`: with those that begin a prompt. Answer: one Tokens."""

    text: str
    special: bool = True


class CountTask(_Task, tag="count", frozen=True, omit_defaults=True, kw_only=True):
    """Say how many tokens the prompt of a chat has, as the engine would read it; nothing is generated.

    Answer: one Usage, with `prompt_tokens` only.
    """

    chat: ChatTask


class DetokenizeTask(_Task, tag="detokenize", frozen=True, omit_defaults=True, kw_only=True):
    """Join token ids to text. Answer: one Text."""

    tokens: tuple[int, ...]


AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
"""How speech is coded: opus in Ogg, aac as ADTS, pcm as little-endian 16-bit mono without a header."""


class SpeechTask(_Task, tag="speech", frozen=True, omit_defaults=True, kw_only=True):
    """Speak a text. `voice`: a name or number of the model's; `speed` 1 is the voice's own pace.

    Answer: Audio pieces that joined are one file of the format, the first one as early as possible; then
    Usage (prompt_tokens: characters of the text; completion_tokens: milliseconds of audio).
    """

    text: str
    voice: str
    format: AudioFormat = "mp3"
    speed: float = 1.0
    instructions: str | None = None


class TranscribeTask(_Task, tag="transcribe", frozen=True, omit_defaults=True, kw_only=True):
    """Write down what is said in a recording: any container and rate that the worker can decode.

    `translate`: in English, whatever was spoken. `language`: a code such as "de", None to find out. `words`:
    with the time of each word. Answer: Segments in order, then one Transcript, then Usage (prompt_tokens:
    milliseconds of audio, completion_tokens: tokens written).
    """

    media: bytes
    translate: bool = False
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    words: bool = False


ImageFormat = Literal["png", "jpeg", "webp"]
"""How a picture is coded."""


class ImageTask(_Task, tag="image", frozen=True, omit_defaults=True, kw_only=True):
    """Draw pictures; sizes in pixels.

    `image` (a picture file) makes it a variation or, with `mask` (transparent or white where to draw), an
    edit; `strength` 0..1 is how far it may go from the picture. None leaves a value to the model's options.
    `previews`: so many unfinished pictures on the way. `format` is that of all pictures, `quality` 0..100
    what jpeg and webp keep (100: all but a little). Answer: Steps, Pictures (previews first, then one final
    one for each of `n`), then Usage.
    """

    prompt: str = ""
    negative_prompt: str = ""
    n: int = 1
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    image: bytes | None = None
    mask: bytes | None = None
    strength: float | None = None
    previews: int = 0
    format: ImageFormat = "png"
    quality: int = 100


Task: TypeAlias = (
    ChatTask
    | CompletionTask
    | EmbedTask
    | RerankTask
    | TokenizeTask
    | CountTask
    | DetokenizeTask
    | SpeechTask
    | TranscribeTask
    | ImageTask
)


GenerateTask: TypeAlias = ChatTask | CompletionTask
"""What a language model answers with Text."""


def unsupported(loader: str, task: Task) -> BadRequest:
    """Return the error of a loader that cannot do a task."""
    kind = type(task).__name__.removesuffix("Task").lower()
    return BadRequest(f"a model of the loader {loader} does not do this: {kind}", code="unsupported_task")


# --- events -------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """An alternative token with its natural-log probability."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The chosen token with its natural-log probability and the best alternatives, best first."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top: tuple[TopLogprob, ...] = ()


class Text(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A piece of the answer of choice `index`. Logprobs, when asked for, cover exactly this text."""

    text: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Reasoning(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """A piece of the model's thinking."""

    text: str
    index: int = 0


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A piece of tool call number `call` (0, 1, …) of choice `index`.

    The first delta of a call carries `id` and `name`; later ones carry only `arguments`, and all of them
    joined are one JSON text. Calls do not interleave.
    """

    call: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    index: int = 0


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Choice `index` is complete; exactly one for each choice."""

    reason: Literal["stop", "length", "tool_calls", "content_filter"]
    index: int = 0


class Usage(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """Token counts of the whole call, over all choices; the last event of a call, exactly one."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Vector(msgspec.Struct, frozen=True, array_like=True, tag="v"):
    """The embedding of input `index`: little-endian float32 values, one after the other."""

    index: int
    data: bytes


class Score(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The relevance of document `index`; higher is better."""

    index: int
    score: float


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Token ids."""

    ids: tuple[int, ...]


class Audio(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """A piece of coded audio."""

    data: bytes


class Word(msgspec.Struct, frozen=True, array_like=True):
    """A word and when it was said, in seconds."""

    word: str
    start: float
    end: float


class Segment(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """A stretch of a transcript: the fields of OpenAI's verbose form, times in seconds."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] = ()


class Transcript(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """What a whole recording was: its language (a name such as "english") and length in seconds."""

    language: str
    duration: float


class Step(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """How far a long piece of work is, 0..1, with a word for people."""

    fraction: float
    stage: str = ""


class Picture(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """Picture `index` as a file of the task's format.

    `preview` None: it is finished; else its number among the previews.
    """

    index: int
    data: bytes
    seed: int | None = None
    preview: int | None = None


Event: TypeAlias = (
    Text
    | Reasoning
    | ToolCallDelta
    | Finish
    | Usage
    | Vector
    | Score
    | Tokens
    | Audio
    | Segment
    | Transcript
    | Step
    | Picture
)
