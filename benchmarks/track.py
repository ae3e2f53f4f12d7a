"""The cost of `AttentionCallback` at its defaults, as a share of the time of a training.

    python -m benchmarks.track                                  a model of the size of SmolLM2-135M, random weights
    python -m benchmarks.track --layers 2 --width 64 --rows 4   a small one, to try it

Every 500 steps the callback reads 4 texts. The share is the CPU time of one measurement over that of 500 steps of training
on rows of 512 tokens; it does not depend on the number of steps. The callback waits if it would exceed 1 %.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch
import transformers

import floatlens as fl
from benchmarks.measure import cpu_seconds

EVERY, LENGTH = 500, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="rows of 512 tokens per step")
    args = parser.parse_args()
    tokenizer = fl.load("tiny-mdm").tokenizer
    assert tokenizer is not None
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=args.width, intermediate_size=args.width * 8 // 3 // 16 * 16,
        num_hidden_layers=args.layers, num_attention_heads=args.width // 64 or 1,
        num_key_value_heads=max(1, args.width // 192), tie_word_embeddings=True, eos_token_id=0, bos_token_id=0,
    )  # fmt: skip
    for kind in ("arm", "mdm"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
        model.config.is_causal, model.config.mask_token_id = kind == "arm", 1
        watch = fl.probe(model, tokenizer, "prose", family=None if kind == "arm" else "a2d-shifted")
        probed = cpu_seconds(partial(watch.log, 0), rounds=1)
        optimizer = torch.optim.AdamW(model.parameters())
        for rows in args.rows:
            ids = torch.randint(2, config.vocab_size, (rows, LENGTH))
            trained = cpu_seconds(partial(train_step, model, optimizer, ids), rounds=1)
            share = probed / (EVERY * trained)
            print(f"{kind}, {rows} x {LENGTH} tokens: step {trained:.1f} s, measurement {probed:.1f} s, {share:.2%}")


def train_step(model: Any, optimizer: torch.optim.Optimizer, ids_BT: torch.Tensor) -> None:
    model(ids_BT, labels=ids_BT).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
