"""Reduce a LoRA adapter to a lower rank, layer by layer, by a singular value decomposition of its product.

    python reduce.py FROM TO --rank 16

Of all matrices of that rank the result is the nearest to the adapter's product in the Frobenius norm. The share of squared
norm that it keeps is printed. A `mask.safetensors` beside the adapter is copied.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

A, B = ".lora_A.weight", ".lora_B.weight"


def reduce(a_RI: torch.Tensor, b_OR: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the factors of the nearest product of a lower rank, and the share of squared norm that it keeps.

    >>> a, b = torch.eye(2, 3), torch.diag(torch.tensor([2.0, 1.0]))
    >>> small_a, small_b, kept = reduce(a, b, 1)
    >>> (small_b @ small_a).abs().round().tolist(), kept
    ([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], 0.8)
    """
    u, s, v = torch.linalg.svd(b_OR.float() @ a_RI.float(), full_matrices=False)
    root = s[:rank].sqrt()
    kept = float(s[:rank].square().sum() / s.square().sum().clamp_min(1e-30))
    return root[:, None] * v[:rank], u[:, :rank] * root, round(kept, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of the adapter")
    parser.add_argument("target", type=Path, help="folder to write")
    parser.add_argument("--rank", type=int, default=16)
    args = parser.parse_args()
    config = json.loads((args.source / "adapter_config.json").read_text(encoding="utf-8"))
    scale, tensors, made, shares = (
        config["lora_alpha"] / config["r"],
        load_file(args.source / "adapter_model.safetensors"),
        {},
        [],
    )
    config |= {"r": args.rank, "lora_alpha": 2 * args.rank}
    for name in (key.removesuffix(A) for key in tensors if key.endswith(A)):
        small_a, small_b, kept = reduce(tensors[name + A], tensors[name + B] * (scale / 2), args.rank)
        made[name + A], made[name + B] = small_a.contiguous(), small_b.contiguous()
        shares.append(kept)
    args.target.mkdir(parents=True, exist_ok=True)
    save_file(made, args.target / "adapter_model.safetensors", metadata={"format": "pt"})
    (args.target / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if (args.source / "mask.safetensors").exists():
        shutil.copyfile(args.source / "mask.safetensors", args.target / "mask.safetensors")
    print(f"{len(shares)} products, {sum(shares) / len(shares):.3f} of the squared norm kept on average")


if __name__ == "__main__":
    main()
