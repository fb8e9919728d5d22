"""The llama.cpp server inside the `xllamacpp` wheel, as a program: `python -m … '{"model": …, "socket": …}'`.

Takes the loader's options as one JSON object. Of `extra_args` it knows the flags in `FLAGS`; another one is
an error that says so, since a flag dropped in silence is worse than a refusal.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modeld.protocol.llama import DEFAULT_CONTEXT, NO_PROJECTOR, embedding_batch
from modeld.worker.loaders.llama_server.engine import ACCELERATORS, NO_VIDEO


def _set(path: str, convert: Callable[[str], Any]) -> Callable[[Any, str], None]:
    *parents, name = path.split(".")

    def apply(params: Any, value: str) -> None:
        for parent in parents:
            params = getattr(params, parent)
        setattr(params, name, convert(value))

    return apply


def _cache_type(value: str) -> Any:
    import xllamacpp

    return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}")


def _flash_attention(value: str) -> Any:
    import xllamacpp

    words = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
    return getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{words[value]}")


def _split(params: Any, value: str) -> None:
    shares = [float(share) for share in value.split(",")]
    # The engine's list has a place for every device it could have.
    params.tensor_split = shares + [0.0] * (len(params.tensor_split) - len(shares))


FLAGS: dict[str, Callable[[Any, str], None]] = {
    "--threads": _set("cpuparams.n_threads", int),
    "-t": _set("cpuparams.n_threads", int),
    "--threads-batch": _set("cpuparams_batch.n_threads", int),
    "-tb": _set("cpuparams_batch.n_threads", int),
    "--ubatch-size": _set("n_ubatch", int),
    "-ub": _set("n_ubatch", int),
    "--cache-type-k": _set("cache_type_k", _cache_type),
    "-ctk": _set("cache_type_k", _cache_type),
    "--cache-type-v": _set("cache_type_v", _cache_type),
    "-ctv": _set("cache_type_v", _cache_type),
    "--flash-attn": _set("flash_attn_type", _flash_attention),
    "-fa": _set("flash_attn_type", _flash_attention),
    "--tensor-split": _split,
    "-ts": _split,
    "--reasoning-budget": _set("sampling.reasoning_budget_tokens", int),
    "--sse-ping-interval": _set("sse_ping_interval", int),
    "--slot-save-path": _set("slot_save_path", str),
    "--seed": _set("sampling.seed", int),
    "--verbosity": _set("verbosity", int),
    "-lv": _set("verbosity", int),
}


def configure(params: Any, options: dict[str, Any]) -> None:
    """Put the loader's options into xllamacpp's `CommonParams`. Raises ValueError for an unknown flag.

    Beside the loader's own: `model` and `socket` (paths), and `embeddings` for a model that gives vectors.
    """
    parallel = int(options.get("parallel") or 1)
    params.model.path = options["model"]
    params.hostnames = [options["socket"]]
    params.n_parallel = parallel
    params.n_ctx = int(options.get("n_ctx", DEFAULT_CONTEXT)) * parallel
    params.use_jinja = True
    params.ui = False
    params.warmup = True
    for key, name in (
        ("n_batch", "n_batch"),
        ("cache_reuse", "n_cache_reuse"),
        ("cache_ram_mib", "cache_ram_mib"),
    ):
        if options.get(key) is not None:
            setattr(params, name, int(options[key]))
    if options.get("embeddings"):
        import xllamacpp

        params.embedding = True
        params.n_batch = params.n_ubatch = embedding_batch(options)
        if options.get("pooling"):
            kind = f"LLAMA_POOLING_TYPE_{options['pooling'].upper()}"
            params.pooling_type = getattr(xllamacpp.llama_pooling_type, kind)
    if options.get("n_gpu_layers") is not None:
        params.n_gpu_layers = int(options["n_gpu_layers"])
    if options.get("threads"):
        params.cpuparams.n_threads = int(options["threads"])
    if options.get("context_shift"):
        params.ctx_shift = True
    if options.get("mmproj") not in (None, "", NO_PROJECTOR):
        params.mmproj.path = options["mmproj"]
        params.video_ffmpeg_bin_dir = NO_VIDEO[1]
    if options.get("lora"):
        import xllamacpp

        params.lora_adapters = [
            xllamacpp.CommonAdapterLoraInfo(str(each["path"]), float(each["scale"]))
            for each in options["lora"]
        ]
    if options.get("draft_model"):
        _draft(params, options)
    template = options.get("chat_template")
    if template:
        file = Path(template)
        params.chat_template = file.read_text("utf-8") if file.is_file() else template
    extra = [str(value) for value in options.get("extra_args") or ()]
    while extra:
        flag, *extra = extra
        flag, equals, value = flag.partition("=")
        if flag not in FLAGS or (not equals and not extra):
            raise ValueError(
                f"extra_args: {flag} is not among those the xllamacpp engine takes ({', '.join(FLAGS)}); "
                "install llama-server for all of them"
            )
        if not equals:
            value, *extra = extra
        FLAGS[flag](params, value)


LAST_WORDS_S = 0.5
"""Seconds for the engine to write down why it does not start."""


def _draft(params: Any, options: dict[str, Any]) -> None:
    """Let a small model go ahead."""
    import xllamacpp

    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    draft = params.speculative.draft
    draft.mparams.path = options["draft_model"]
    for key, name, convert in (
        ("draft_n_max", "n_max", int),
        ("draft_n_min", "n_min", int),
        ("draft_p_min", "p_min", float),
        ("draft_n_gpu_layers", "n_gpu_layers", int),
    ):
        if options.get(key) is not None:
            setattr(draft, name, convert(options[key]))


def accelerators(devices: list[dict[str, Any]]) -> list[str]:
    """Return what computes beside the CPU, of xllamacpp's list of devices."""
    return [
        f"{device['name']} ({device['description']})"
        for device in devices
        if not str(device["name"]).startswith("CPU")
    ]


def main() -> int:
    """Serve until SIGTERM."""
    import xllamacpp

    # The server's threads never return to Python: the default action ends the process at once.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    params = xllamacpp.CommonParams()
    try:
        configure(params, json.loads(sys.argv[1]))
        print(ACCELERATORS + json.dumps(accelerators(xllamacpp.get_device_info())), flush=True)
        server = xllamacpp.Server(params)
    except (ValueError, OSError, RuntimeError) as error:
        # llama.cpp logs from a thread of its own, which the end of the process does not wait for.
        time.sleep(LAST_WORDS_S)
        print(error, file=sys.stderr, flush=True)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
