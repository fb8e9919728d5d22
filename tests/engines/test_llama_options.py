"""Options of llama.cpp on the real engine: each is seen to have its effect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from modeld.config.engines import LlamaServerConfig
from modeld.errors import BadRequest, LoadFailed
from modeld.protocol.tasks import ChatTask, CompletionTask, Message, Sampling, Text, Usage
from modeld.worker.loaders.llama_server.client import Client
from tests.harness.loaded import Loaded, loaded
from tests.harness.models_vision import adapter, projector, seer

pytestmark = pytest.mark.engine

GREEDY = Sampling(max_tokens=24, temperature=0.0)
DRAFTED = re.compile(r"draft acceptance = [\d.]+ \( *(\d+) accepted / *(\d+) generated")
YES_OR_NO = {"cache_prompt": False, "grammar": 'root ::= "yes" | "no"'}


@asynccontextmanager
async def started(folder: Path, model: Path | None = None, **options: Any) -> AsyncIterator[Loaded]:
    """Load a model with these options, as a configuration gives them."""
    checked = LlamaServerConfig.model_validate({"n_ctx": 512, "threads": 1, **options}).worker_options()
    async with loaded(folder, model or seer(), "llama_server", "generate", **checked) as found:
        yield found


def chat(**more: Any) -> ChatTask:
    """Return a conversation whose answer is the same each time."""
    fields = {"sampling": GREEDY, "engine_options": {"cache_prompt": False}, **more}
    return ChatTask(messages=(Message(role="user", content="What is it?"),), **fields)


async def said(model: Loaded, task: ChatTask | CompletionTask) -> str:
    """Return the text of an answer."""
    return "".join(event.text for event in await model.ask(task) if isinstance(event, Text))


async def slots(folder: Path) -> list[dict[str, Any]]:
    """Ask the engine itself about its slots."""
    found: list[dict[str, Any]] = await Client(folder / "w1" / "engine.sock").fetch("GET", "/slots")
    return found


async def test_adapters_change_the_answer_by_their_scale(short_dir: Path) -> None:
    """None, a half, and all of one give three answers; the facts name file and scale."""
    answers, details = [], []
    for lora in ([], [{"path": str(adapter()), "scale": 0.5}], [str(adapter())]):
        async with started(short_dir, lora=lora) as model:
            answers.append(await said(model, chat()))
            details.append(model.facts.detail.get("lora"))
    assert details == [None, f"{adapter()} × 0.5", f"{adapter()} × 1"]
    assert len(set(answers)) == 3
    assert len({len(answer) for answer in answers}) == 1


@pytest.mark.parametrize("missing", [True, False])
async def test_an_adapter_that_is_none_fails_the_load(short_dir: Path, missing: bool) -> None:
    """For good, with the engine's words and the file's name."""
    file = short_dir / "none.gguf" if missing else seer()
    with pytest.raises(
        LoadFailed, match=f"(?s)failed to load lora adapter '{re.escape(str(file))}'"
    ) as caught:
        async with started(short_dir, lora=[str(file)]):
            pass
    assert caught.value.permanent


async def test_a_draft_model_drafts_and_changes_nothing(short_dir: Path) -> None:
    """The engine's own count says so; the answer is the same, and the facts name the file."""
    async with started(short_dir) as model:
        alone = await said(model, chat())
    async with started(short_dir, draft_model=str(seer()), draft_n_max=4) as model:
        assert [slot["speculative"] for slot in await slots(short_dir)] == [True]
        assert await said(model, chat()) == alone
        assert model.facts.detail["draft"] == str(seer())
        async with asyncio.timeout(60):  # the engine tells after its answer
            while not (drafted := DRAFTED.search(model.log)):
                await asyncio.sleep(0.02)
    assert int(drafted[1]) == int(drafted[2]) > 4  # a model agrees with itself


async def test_a_draft_of_other_words_is_refused(short_dir: Path, demo_gguf: Path) -> None:
    """The engine would go on without it, in silence; a file that is none fails with its words."""
    with pytest.raises(LoadFailed, match=r"does not draft with .*vocabulary") as caught:
        async with started(short_dir, draft_model=str(demo_gguf)):
            pass
    assert caught.value.permanent
    with pytest.raises(LoadFailed, match=r"(?s)its last words:.*none\.gguf") as caught:
        async with started(short_dir, draft_model=str(short_dir / "none.gguf")):
            pass
    assert caught.value.permanent


async def test_vectors_are_not_drafted(short_dir: Path) -> None:
    """A model for vectors writes nothing."""
    with pytest.raises(LoadFailed, match="leave draft_model out") as caught:
        async with loaded(short_dir, seer(), "llama_server", "embed", draft_model=str(seer())):
            pass
    assert caught.value.permanent


async def test_grammars_hold_and_broken_ones_are_the_callers_fault(short_dir: Path) -> None:
    """In conversations and completions; afterwards the model goes on."""
    async with started(short_dir, mmproj=str(projector())) as model:
        assert await said(model, chat(engine_options=YES_OR_NO)) in ("yes", "no")
        raw = CompletionTask(prompt="It is", sampling=GREEDY, engine_options=YES_OR_NO)
        assert await said(model, raw) in ("yes", "no")
        for broken in ("root ::= ((", "answer ::= [a-z]", "no grammar at all"):
            for task in (chat(engine_options={"grammar": broken}), raw_with(broken)):
                with pytest.raises(BadRequest, match="grammar") as caught:
                    await model.ask(task)
                assert (caught.value.code, caught.value.param) == ("invalid_grammar", "grammar")
        assert await said(model, chat())


def raw_with(grammar: str) -> CompletionTask:
    """Return a completion under a grammar."""
    return CompletionTask(prompt="It is", sampling=GREEDY, engine_options={"grammar": grammar})


async def test_every_slot_has_the_whole_context(short_dir: Path) -> None:
    """`parallel` multiplies the memory, not the limit: engine and facts say so, a long prompt fits."""
    async with started(short_dir, n_ctx=512, parallel=3) as model:
        assert [slot["n_ctx"] for slot in await slots(short_dir)] == [512, 512, 512]
        assert (model.facts.slots, model.facts.context_length) == (3, 512)
        long = CompletionTask(prompt="x" * 450, sampling=Sampling(max_tokens=4, temperature=0.0))
        usage = (await model.ask(long))[-1]
        assert isinstance(usage, Usage)
        assert usage.prompt_tokens == 450
        with pytest.raises(BadRequest, match="512"):
            await model.ask(CompletionTask(prompt="x" * 600, sampling=GREEDY))


async def test_the_cache_has_the_types_asked_for(short_dir: Path, demo_gguf: Path) -> None:
    """The engine's log tells type and size of keys and values."""
    types = {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}
    async with started(short_dir, demo_gguf, **types, extra_args=["--verbosity", "4"]) as model:
        assert await said(model, chat())
        await model.logged("V (q4_0):")
        assert re.search(r"K \(q8_0\):.*V \(q4_0\):", model.log), model.log[-3000:]


async def test_layers_stay_on_the_cpu_when_told(short_dir: Path) -> None:
    """0, all and one are taken; without a GPU all of them are told as cpu, which is where they run."""
    for layers in (0, -1, 1):
        async with started(short_dir, n_gpu_layers=layers, n_batch=64) as model:
            assert model.facts.device == "cpu"
            assert model.facts.detail["batch"] == "64 tokens"
            assert await said(model, chat())


async def test_what_the_wheel_cannot_do_is_said(short_dir: Path) -> None:
    """A flag that only the program knows is a failure that names it and the way out."""
    with pytest.raises(
        LoadFailed, match=r"--lookup-cache-static is not among.*install llama-server"
    ) as caught:
        async with started(short_dir, extra_args=["--lookup-cache-static", "x"]):
            pass
    assert caught.value.permanent
