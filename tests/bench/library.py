"""`python -m tests.bench.library`: what it costs to list 500 models, cold and warm. Prints figures.

The files are sparse: each has the header of a real model, with one of a few vocabularies of the sizes that
are in use (real libraries hold many models for each vocabulary), and 100 MB of nothing behind it; then the
same with a vocabulary of its own in every file, the worst there can be. `modeld ctl models` is timed beside
the listing alone: what it takes for an empty folder is the command's own start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import resource
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

from modeld.library import gguf, reading
from modeld.library.listing import Listing
from modeld.library.word_lists import Workspace

SIZES = {
    "smollm2": (49152, 48900),
    "llama3": (128256, 280147),
    "qwen2": (151936, 151387),
    "gemma": (262144, 0),
}
"""Words and merges of vocabularies that are in use."""


def text(words: str | bytes) -> bytes:
    """Return a text with its length before it."""
    raw = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(raw)) + raw


def words(count: int, chance: random.Random) -> bytes:
    """Return a list of words of the usual lengths."""
    alphabet = chance.randbytes(1 << 16).translate(bytes(33 + at % 90 for at in range(256)))
    lengths = chance.choices(range(1, 16), k=count)
    starts = chance.choices(range(1 << 15), k=count)
    body = b"".join(
        text(alphabet[start : start + length]) for start, length in zip(starts, lengths, strict=True)
    )
    return struct.pack("<IIQ", 9, 8, count) + body


def vocabulary(count: int, merges: int, chance: random.Random) -> list[tuple[str, bytes]]:
    """Return the keys of a tokenizer."""
    numbers = struct.pack("<IIQ", 9, 5, count) + bytes(4 * count)
    keys = [("tokenizer.ggml.tokens", words(count, chance)), ("tokenizer.ggml.token_type", numbers)]
    if merges:
        keys.append(("tokenizer.ggml.merges", words(merges, chance)))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %}" * 50
    return [*keys, ("tokenizer.chat_template", struct.pack("<I", 8) + text(template))]


def model(name: str, tokenizer: list[tuple[str, bytes]], layers: int = 32) -> bytes:
    """Return the header of a llama."""
    numbers = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": 64,
        "feed_forward_length": 128,
    }
    numbers |= {"attention.head_count": 8, "attention.head_count_kv": 2}
    keys = [
        ("general.architecture", struct.pack("<I", 8) + text("llama")),
        ("general.name", struct.pack("<I", 8) + text(name)),
        ("general.file_type", struct.pack("<II", 4, 15)),
        *((f"llama.{key}", struct.pack("<II", 4, value)) for key, value in numbers.items()),
        *tokenizer,
    ]
    parts = (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    )
    tensors = ["token_embd.weight", "output_norm.weight"]
    tensors += [f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts]
    lines = [
        text(tensor) + struct.pack("<IQQIQ", 2, 256, 64, 12, at * 9216) for at, tensor in enumerate(tensors)
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    return head + b"".join(text(key) + value for key, value in keys) + b"".join(lines)


def fill(folder: Path, count: int, distinct: bool) -> int:
    """Write the files; return the bytes of their headers."""
    chance = random.Random(1)
    kinds = [vocabulary(*sizes, chance) for sizes in SIZES.values() for _ in range(3)]
    total = 0
    for number in range(count):
        tokenizer = vocabulary(*SIZES["smollm2"], chance) if distinct else kinds[number % len(kinds)]
        below = folder / f"org{number % 25}"
        below.mkdir(exist_ok=True)
        path = below / f"model-{number}-Q4_K_M.gguf"
        head = model(f"model {number}", tokenizer)
        path.write_bytes(head)
        os.truncate(path, len(head) + 100_000_000)
        total += len(head)
    return total


def cpu() -> float:
    """Return the seconds of processor time used so far, by this process and those that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


async def measure(folder: Path, cache: Path) -> None:
    """List cold, warm as a new process would, and warm again."""
    listing = Listing(cache)
    for name in (
        "cold",
        "warm, from the file",
        "warm, from the file",
        "warm, from memory",
        "warm, from memory",
    ):
        listing = listing if name == "warm, from memory" else Listing(cache)
        start, used = time.perf_counter(), cpu()
        entries = await listing.scan(folder)
        took, used = time.perf_counter() - start, cpu() - used
        print(f"{name:<40} {took * 1000:>10.1f} ms  {used * 1000:.0f} ms of processor time", flush=True)
        assert not [entry.error for entry in entries if entry.error]
    size = sum(file.stat().st_size for file in cache.iterdir())
    print(f"{'what is kept':<40} {size / 1000:>10.0f} kB")


async def command(folder: Path, cache: Path) -> None:
    """Time `modeld ctl models` for the models, and for no model: the rest is Python's start and imports."""
    empty = cache / "nothing"
    empty.mkdir()
    took: dict[Path, list[float]] = {folder: [], empty: []}
    for _ in range(5):
        for path, times in took.items():
            line = ["-m", "modeld", "ctl", "--state-dir", str(cache), "models", "--cache-dir", str(cache)]
            start = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                sys.executable, *line, str(path), stdout=asyncio.subprocess.DEVNULL
            )
            await process.wait()
            times.append(time.perf_counter() - start)
    all_, none = (statistics.median(times) * 1000 for times in took.values())
    words = f"start and imports {none:.0f} ms, models {all_ - none:.0f} ms"
    print(f"{'warm, ctl models (median of 5)':<40} {all_:>10.0f} ms  {words}")


async def hostile(folder: Path) -> None:
    """Time the worst of hostile files: the reading, and all of it with the reader's start."""
    empty = struct.pack("<IIQ", 9, 8, 1 << 20)
    quarter = struct.pack("<IIQ", 9, 8, 1 << 18)
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a")
    files = {
        "a million empty words": head + empty + bytes(8 << 20),
        "a quarter of a million empty words": head + quarter + bytes(2 << 20),
        "as many words, 60 MB": head + quarter + (struct.pack("<Q", 220) + bytes(220)) * (1 << 18),
        "8000 keys": b"GGUF"
        + struct.pack("<IQQ", 3, 0, 8000)
        + b"".join(text(f"key.{at}") + struct.pack("<II", 4, 1) for at in range(8000)),
        "16000 tensors": b"GGUF"
        + struct.pack("<IQQ", 3, 16000, 0)
        + b"".join(text(f"blk.{at}.w") + struct.pack("<IQIQ", 1, 32, 0, 0) for at in range(16000))
        + bytes(256),
        "a huge count": b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62),
    }
    for name, content in files.items():
        path = folder / "hostile.gguf"
        path.write_bytes(content)
        used = cpu()
        said = gguf.answer([path], Workspace())
        used = cpu() - used
        start = time.perf_counter()
        await reading.read_models([[path]])
        once = time.perf_counter() - start
        why = (said.error or said.unknown or f"{path} has a header")[len(str(path)) :][:60]
        print(
            f"{'hostile: ' + name:<40} {used * 1000:>10.1f} ms  {once * 1000:.0f} ms from start to end;{why}"
        )


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    chosen = parser.parse_args()
    for distinct in (False, True):
        with tempfile.TemporaryDirectory(prefix="md") as folder:
            models, cache = Path(folder, "models"), Path(folder, "cache")
            models.mkdir()
            total = fill(models, chosen.count, distinct)
            what = "with a vocabulary each" if distinct else "with 12 vocabularies"
            print(f"{chosen.count} files {what}, {total / 1e6:.0f} MB of headers, {os.cpu_count()} cores")
            asyncio.run(measure(models, cache))
            asyncio.run(command(models, cache))
            if distinct:
                asyncio.run(hostile(Path(folder)))


if __name__ == "__main__":
    main()
