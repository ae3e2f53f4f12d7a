"""Write the output of `floatlens models` for LLaDA-8B and Dream-7B into docs/llada.md.

    python docs/scripts/estimate_large_models.py

Only the configs are needed; the fields below are those of the published config.json files.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from floatlens.cli.main import run

PAGE = Path(__file__).parents[1] / "llada.md"
CONFIGS = {
    "llada": {
        "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32,
        "mlp_hidden_size": 12288, "vocab_size": 126464, "embedding_size": 126464, "mask_token_id": 126336,
        "eos_token_id": 126081, "pad_token_id": 126081, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "max_sequence_length": 4096, "weight_tying": False,
    },
    "dream": {
        "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "mask_token_id": 151666,
        "bos_token_id": 151643, "eos_token_id": 151643, "pad_token_id": 151643, "rope_theta": 1e6,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
}  # fmt: skip
WORDS = {"models": ("--dtype", "bfloat16")}


def main() -> None:
    text = PAGE.read_text()
    for (name, command), said in outputs().items():
        place = f"{name} {command}"
        pattern = re.compile(rf"(<!-- {place} -->\n).*?(<!-- /{place} -->)", re.DOTALL)
        text = pattern.sub(lambda match, said=said: f"{match[1]}```\n{said}\n```\n{match[2]}", text)
    PAGE.write_text(text)


def outputs() -> dict[tuple[str, str], str]:
    """Return the output of each command for each model."""
    os.environ["COLUMNS"] = "110"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in CONFIGS.items():
            target = Path(folder, name)
            target.mkdir()
            (target / "config.json").write_text(json.dumps(config))
            for command, words in WORDS.items():
                printed = io.StringIO()
                with redirect_stdout(printed):
                    code = run([command, str(target), *words])
                if code:
                    raise SystemExit(code)
                lines = printed.getvalue().splitlines()
                found[name, command] = "\n".join(line.rstrip() for line in lines).strip()
    return found


if __name__ == "__main__":
    main()
