"""A tiny diffusers model with random weights: real parts, and pictures of coloured noise.

The noise depends on prompt, seed, size and steps, and is the same every time on one machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parents[2] / ".nox" / "cache"
RECIPE = 1
"""Raised when the model changes."""

WIDTH = 32
"""Of the text encoder and of what attends to it."""


def diffusers_model(python: str = sys.executable, cache: Path = CACHE) -> Path:
    """Return the model's folder, built once, by `python`, which has diffusers."""
    folder = cache / f"tiny-diffusers-{RECIPE}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
        try:
            subprocess.run([python, __file__, str(new / "model")], check=True, capture_output=True, text=True)
            try:
                (new / "model").rename(folder)
            except OSError:  # somebody else was faster
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return folder


def _tokenizer(folder: Path) -> Any:
    """Make a tokenizer for which every byte is a token: CLIP's alphabet, and no merges but one."""
    from transformers import CLIPTokenizer

    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unprintable = iter(range(256, 512))
    alphabet = [chr(byte if byte in printable else next(unprintable)) for byte in range(256)]
    words = [*alphabet, *(letter + "</w>" for letter in alphabet), "ca", "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\nc a\n", "utf-8")
    return CLIPTokenizer.from_pretrained(folder, model_max_length=77)


def _build(folder: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import diffusers
    import torch
    import transformers

    torch.manual_seed(20)
    tokenizer = _tokenizer(folder / "tokenizer")
    text = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        projection_dim=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,  # in latents: 64 pixels
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
        norm_num_groups=8,
    )
    vae = diffusers.AutoencoderKL(
        sample_size=64,
        latent_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 8, 16, 16),  # four levels halve three times: a factor of 8, as in real ones
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=8,
    )
    scheduler = diffusers.EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1
    )
    diffusers.StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=transformers.CLIPTextModel(text).eval(),
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
