from __future__ import annotations

from pathlib import Path

from modeld.library.inspect import inspect
from modeld.library.resolve import Resolver


async def test_a_folder_of_onnx_files_is_a_model_of_their_size(tmp_path: Path) -> None:
    """A speech model's folder resolves to itself, and what its ONNX files weigh is known before a load."""
    folder = tmp_path / "kokoro"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"x" * 1000)
    (folder / "vocoder.onnx").write_bytes(b"x" * 500)
    (folder / "tokens.txt").write_text("a 1\n")
    found = await Resolver(tmp_path / "cache").resolve(str(folder), lambda *_: None)
    assert found == folder
    metadata = await inspect(found)
    assert (metadata.format, metadata.size, metadata.name) == ("other", 1500, "kokoro")
