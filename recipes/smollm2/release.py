"""Put a trained adapter and its card among the bundled models.

    python release.py smollm2-mdm runs/mdm/final --card README.md

The weights are float16 with their last bits rounded away, so that the wheel, which is compressed, stays below 40 MB.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from floatlens.models import bundled

DROPPED = 3  # of the 10 bits of a float16's fraction: a relative error of at most 1/256, and a sixth less in the wheel
COPIED = ("adapter_config.json", "mask.safetensors")


def shorten(tensor: torch.Tensor, dropped: int = DROPPED) -> torch.Tensor:
    """The tensor in float16, rounded to the nearest number whose last bits are zero.

    >>> shorten(torch.tensor([1 + 2**-10, 1 + 2**-7, -1 - 2**-7 - 2**-9])).tolist()
    [1.0, 1.0078125, -1.0078125]
    """
    bits = tensor.half().contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    sign, size = bits & 0x8000, bits & 0x7FFF
    size = (size + (1 << (dropped - 1))) >> dropped << dropped
    made = (sign | size).to(torch.int16).view(torch.float16)
    assert bool(made.isfinite().all()), "the adapter has numbers that float16 cannot hold"
    return made


def release(name: str, adapter: Path, card: Path) -> Path:
    """Write the files of a bundled adapter and record their checksums; returns the folder."""
    folder = bundled.MODELS / name
    folder.mkdir(exist_ok=True)
    tensors = load_file(adapter / "adapter_model.safetensors")
    made = {key: shorten(tensor) for key, tensor in tensors.items()}
    save_file(made, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    for file in COPIED:
        if file != "mask.safetensors" or name != "smollm2-arm":
            shutil.copyfile(adapter / file, folder / file)
    (folder / "README.md").write_bytes(card.read_bytes())  # the card may be there already
    for path in folder.iterdir():
        path.chmod(0o644)
    bundled.record()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=bundled.ADAPTERS)
    parser.add_argument("adapter", type=Path, help="folder of the trained adapter")
    parser.add_argument("--card", type=Path, required=True, help="what card.py wrote")
    args = parser.parse_args()
    print(release(args.name, args.adapter, args.card))


if __name__ == "__main__":
    main()
