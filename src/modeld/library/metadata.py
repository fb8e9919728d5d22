"""What a model's files say of themselves, whatever their format."""

from __future__ import annotations

from typing import Literal

import msgspec


class Layer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One repeating layer, as far as memory is concerned.

    `weights`: bytes, of which `experts` are those of routed experts. `keys`, `values`: elements that a token
    leaves in the KV cache, 0 for a layer without one of its own. `window`: tokens that the layer looks back,
    0 for all of them. `state`: bytes of recurrent state for one sequence, whatever its length.
    """

    weights: int = 0
    experts: int = 0
    keys: int = 0
    values: int = 0
    window: int = 0
    state: int = 0


class Vision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a projector file (mmproj) says: the encoder of pictures or sound beside a language model.

    Sizes of pictures and patches in pixels; 0 when the file does not tell.
    """

    projector: str = ""
    images: bool = True
    audio: bool = False
    image_size: int = 0
    patch_size: int = 0
    embedding_length: int = 0
    feed_forward_length: int = 0


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's metadata; a field left at its default is unknown.

    `size`: bytes on disk, all files of the model together. `parameters`: number of weights. `quantization`:
    the weights' type in the words of the format ("Q4_K_M", "bfloat16", "awq"). `context_length`: tokens that
    it was trained for. `input_weights`: bytes of the token embedding and what else works on token ids;
    `output_weights`: bytes after the last layer; `tied`: the token embedding serves as the output too.
    `feed_forward_length`: the widest layer's, of a mixture that of the experts active at once.
    """

    format: Literal["gguf", "safetensors", "other"]
    size: int
    architecture: str = ""
    name: str = ""
    parameters: int | None = None
    quantization: str = ""
    context_length: int | None = None
    layers: tuple[Layer, ...] = ()
    input_weights: int = 0
    output_weights: int = 0
    tied: bool = False
    embedding_length: int = 0
    feed_forward_length: int = 0
    n_head: int = 0
    vocabulary: int = 0
    n_experts: int = 0
    n_experts_used: int = 0
    has_chat_template: bool = False
    vision: Vision | None = None
