"""LLaDA-8B's size on this machine: random weights in its layout, described, loaded in bfloat16 and traced.

    python -m benchmarks.llada_8b FOLDER              16 GB on the disk, and about 18 GB of memory
    python -m benchmarks.llada_8b FOLDER --layers 8   8 of the 32 layers: 5.6 GB, and about 7 GB of memory
    python -m benchmarks.llada_8b FOLDER --layers 2 --width 64 --heads 4 --mlp 96 --vocabulary 512

Prints the answer of `floatlens models`, peak memory above the weights, how much of it is mapped from the files, the time
of a trace of 64 + 8 positions in 2 steps over plain generation, and the size of the stored trace beside the estimate,
half of what `floatlens models` says of memory, for float16. The checkpoint is kept for the next run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.measure import interleaved

PROMPT, NEW, STEPS = 64, 8, 2


def write_checkpoint(folder: Path, layers: int, width: int, heads: int, mlp: int, vocabulary: int) -> None:
    """Write random weights in LLaDA-8B-Instruct's layout, one shard per layer, holding one shard in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, str] = {}

    def save(shapes: dict[str, tuple[int, ...]], number: int) -> None:
        name = f"model-{number:05}-of-{layers + 1:05}.safetensors"
        index.update(dict.fromkeys(shapes, name))
        if not (folder / name).exists():
            tensors = {
                key: torch.ones(shape, dtype=torch.bfloat16)
                if len(shape) == 1
                else torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
                for key, shape in shapes.items()
            }
            save_file(tensors, folder / name, metadata={"format": "pt"})

    square, up, down = (width, width), (mlp, width), (width, mlp)
    parts: dict[str, tuple[int, ...]] = dict.fromkeys(("q_proj", "k_proj", "v_proj", "attn_out"), square)
    parts |= {"ff_proj": up, "up_proj": up, "ff_out": down, "attn_norm": (width,), "ff_norm": (width,)}
    for layer in range(layers):
        save({f"model.transformer.blocks.{layer}.{name}.weight": shape for name, shape in parts.items()}, layer + 1)
    tables = {f"model.transformer.{name}.weight": (vocabulary, width) for name in ("wte", "ff_out")}
    save(tables | {"model.transformer.ln_f.weight": (width,)}, layers + 1)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config = {
        "model_type": "llada", "architectures": ["LLaDAModelLM"], "d_model": width, "n_layers": layers, "n_heads": heads,
        "n_kv_heads": heads, "mlp_hidden_size": mlp, "vocab_size": vocabulary, "embedding_size": vocabulary,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_sequence_length": 4096, "weight_tying": False,
        "mask_token_id": vocabulary - 128, "eos_token_id": 2, "pad_token_id": 2, "block_type": "llama",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def resident(kind: str) -> int:
    """Bytes of this process in memory: RssFile (mapped from files) or RssAnon (its own)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, size in {"layers": 32, "width": 4096, "heads": 32, "mlp": 12288, "vocabulary": 126464}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    write_checkpoint(chosen.folder, chosen.layers, chosen.width, chosen.heads, chosen.mlp, chosen.vocabulary)
    weights = sum(path.stat().st_size for path in chosen.folder.glob("*.safetensors"))
    command = [sys.executable, "-m", "floatlens", "models", str(chosen.folder), "--dtype", "bfloat16"]
    described = subprocess.run(command, text=True, capture_output=True, check=False)
    print(described.stdout or described.stderr)

    import floatlens
    from floatlens.models.describe import bytes_per_step

    lens = floatlens.load(str(chosen.folder), dtype="bfloat16")
    lens.end_ids = ()
    ids = torch.randint(3, chosen.vocabulary - 200, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()
    settings = {"max_new_tokens": NEW, "steps": STEPS}
    ways = {"plain": lambda: lens.generate([ids], **settings), "trace": lambda: lens.trace(ids, **settings)}
    taken = interleaved(ways, chosen.rounds)
    trace = lens.trace(ids, **settings)
    stored = chosen.folder / "trace.zarr"
    trace.save(stored)
    size = sum(path.stat().st_size for path in stored.rglob("*") if path.is_file())
    peak, mapped = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident("RssFile")
    above = (peak - weights) / 1e9
    print(f"weights {weights / 1e9:.2f} GB, peak memory {peak / 1e9:.2f} GB, above the weights {above:.2f} GB")
    print(f"{mapped / 1e9:.2f} GB are mapped from the files")
    print(
        f"CPU seconds: plain {taken['plain']:.2f}, trace {taken['trace']:.2f}, ratio {taken['trace'] / taken['plain']:.3f}"
    )
    estimate = STEPS * bytes_per_step(chosen.layers, chosen.heads, chosen.heads, PROMPT + NEW) // 2  # float16
    print(f"stored trace: {size / 1e6:.2f} MB, estimated {estimate / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
