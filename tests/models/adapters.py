"""Random LoRA adapters, written by peft itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import save_file

from tests.models import checkpoints

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def random_adapter(base: Path, folder: Path, targets: list[str] | None = None, **options: Any) -> Path:
    """An adapter of rank 4 on a causal model, with factors that are not zero."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": targets or LINEAR, **options})
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.normal_(0.0, 0.2)
    adapted.save_pretrained(folder)
    return folder


def add_mask(folder: Path, width: int = checkpoints.SIZES["hidden_size"]) -> torch.Tensor:
    """Give an adapter the vector of a mask token."""
    vector = torch.randn(width, generator=torch.Generator().manual_seed(3))
    save_file({"mask": vector}, folder / "mask.safetensors")
    return vector


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
