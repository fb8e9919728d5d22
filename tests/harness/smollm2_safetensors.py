"""`python smollm2_safetensors.py FILE.gguf FOLDER`: a GGUF model as a folder of bfloat16 safetensors.

A program, since it needs torch, transformers and gguf, and gigabytes of memory for a moment.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(source: Path, folder: Path) -> None:
    """Dequantise `source` into `folder`: weights, configuration, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    assert tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    # The weights are plain from here on: whoever loads them must not look for a quantiser.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.bfloat16().save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
