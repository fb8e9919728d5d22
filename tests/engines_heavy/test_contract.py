"""Every heavy loader's real engine passes the loaders' contract."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modeld.protocol.tasks import ChatTask, ImageTask, Message, Picture
from tests.harness.loader_contract import MIB, Case, LoaderContract
from tests.harness.models_diffusers import diffusers_model
from tests.harness.models_sdcpp import sdcpp_model

pytestmark = pytest.mark.engine

CHAT = ChatTask(messages=(Message(role="user", content="hi"),))


def torn_pipeline(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Make a pipeline one of whose networks is cut off."""
    broken = folder / "broken"
    shutil.copytree(model, broken)
    weights = broken / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    return broken, {}


def torn_file(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Make a model file that ends in the middle of its weights."""
    broken = folder / "broken.gguf"
    broken.write_bytes(model.read_bytes()[:5_000_000])
    return broken, {}


class TestDiffusers(LoaderContract):
    """diffusers on torch."""

    case = Case(
        loader="diffusers",
        usecase="image",
        model=diffusers_model,
        options={"torch_dtype": "float16"},
        capabilities=frozenset({"image", "image_edit"}),
        short=ImageTask(prompt="a cat", steps=3, seed=5, width=64, height=48),
        ends=Picture,
        long=ImageTask(prompt="a cat", steps=1000, n=10, width=64, height=48),
        bad=ImageTask(prompt="x", width=60, height=64),
        foreign=CHAT,
        broken=torn_pipeline,
        words="cannot load|broken",
        log="float32 is used",
        pieces=3,
        memory=100 * MIB,
    )


class TestStableDiffusionCpp(LoaderContract):
    """stable-diffusion.cpp in a child process."""

    case = Case(
        loader="stable_diffusion_cpp",
        usecase="image",
        model=lambda: sdcpp_model(encoder=False),
        options={"n_threads": 1},
        capabilities=frozenset({"image"}),
        short=ImageTask(prompt="a cat", steps=3, seed=5, width=32, height=32),
        ends=Picture,
        long=ImageTask(prompt="a cat", steps=1000, n=10, width=64, height=48),
        bad=ImageTask(prompt="x", width=60, height=64),
        foreign=CHAT,
        broken=torn_file,
        words="cannot load|killed by signal|exited with",
        log="Version: Ovis Image",
        pieces=3,
    )
