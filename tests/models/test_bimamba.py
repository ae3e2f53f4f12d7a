"""The family of bidirectional Mamba: loaded from a folder, sampled by LLaDA's sampler, observed while it writes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import floatlens as fl
from floatlens.attention.state_space import RULE
from floatlens.errors import FloatLensError
from floatlens.models.bimamba_network import BiMamba2ForMaskedLM, BiMambaForMaskedLM
from floatlens.models.quiet import is_no_kernel_remark

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4, "tie_word_embeddings": True}
TOKENS = {"mask_token_id": 49, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
MIXERS = {
    "mamba": {"mixer": "mamba", "intermediate_size": 24, "time_step_rank": 2},
    "mamba2": {"mixer": "mamba2", "expand": 2, "num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
}


def checkpoint(folder: Path, mixer: str) -> str:
    """A random model of this family on disk."""
    config = {"model_type": "bimamba", **SIZES, **TOKENS, **MIXERS[mixer]}
    (folder / "config.json").write_text(json.dumps(config))
    kind = BiMambaForMaskedLM if mixer == "mamba" else BiMamba2ForMaskedLM
    known = {k: v for k, v in config.items() if k not in ("model_type", "mixer", "mask_token_id")}
    torch.manual_seed(0)
    model = kind(kind.config_class(**known))
    tensors = {name: torch.randn_like(weight) * 0.3 for name, weight in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_checkpoint_is_sampled_by_lladas_sampler_and_tracing_changes_no_token(tmp_path: Path, mixer: str) -> None:
    lens = fl.load(checkpoint(tmp_path, mixer))
    assert (lens.family.name, lens.family.kind, lens.family.sampler) == ("bimamba", "mdm", "llada")
    assert lens.shape["heads"] == {"mamba": 2, "mamba2": 8}[mixer]
    prompts = [[5, 6, 7, 8], [9, 10]]
    together = lens.generate(prompts, max_new_tokens=6)
    for prompt, made in zip(prompts, together, strict=True):
        assert lens.generate([prompt], max_new_tokens=6)[0].ids == made.ids
        trace = lens.trace(prompt, max_new_tokens=6)
        written = trace.data["final_tokens"].values[len(prompt) :]
        assert written[: len(made.ids)].tolist() == made.ids
        assert trace.attention_kind == "two-way" and json.loads(trace.data.attrs["rules"]) == [RULE]
        assert trace.data["received"].sizes["head"] == lens.shape["heads"]
        np.testing.assert_allclose(trace.data["received"].sum("position"), 1.0, atol=1e-5)


def test_a_trace_of_a_batch_equals_the_one_of_its_prompt_alone(tmp_path: Path) -> None:
    lens = fl.load(checkpoint(tmp_path, "mamba2"))
    batched = lens.traces([[5, 6, 7, 8], [9, 10]], max_new_tokens=3)[1].data
    alone = lens.trace([9, 10], max_new_tokens=3).data
    for name in ("received", "received_writing", "qk", "entropy", "value_norm"):
        np.testing.assert_allclose(batched[name], alone[name], atol=1e-5, rtol=1e-4, err_msg=name)


def test_another_mixer_is_refused(tmp_path: Path) -> None:
    name = checkpoint(tmp_path, "mamba2")
    changed = json.loads((tmp_path / "config.json").read_text()) | {"mixer": "s4"}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(FloatLensError, match="'mixer' is 's4'; expected one of mamba, mamba2"):
        fl.load(name)


def test_an_intervention_on_attention_is_refused(tmp_path: Path) -> None:
    lens = fl.load(checkpoint(tmp_path, "mamba2"))
    with (
        pytest.raises(FloatLensError, match=r"softmax attention, and a state-space model has none .* use a model with"),
        lens.intervene("mask-anchors(top(1))"),
    ):
        pass


def test_missing_kernels_are_not_remarked_on_a_cpu_and_other_warnings_are_kept(tmp_path: Path) -> None:
    """transformers says once per process that Mamba's kernels, which need a GPU, are not installed."""
    from transformers.utils import logging as transformers_logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    lens = fl.load(checkpoint(tmp_path, "mamba2"))
    root, kernels = logging.getLogger("transformers"), logging.getLogger("transformers.integrations.hub_kernels")
    root.addHandler(handler)
    try:
        transformers_logging.warning_once.cache_clear()
        lens.generate([[5, 6, 7]], max_new_tokens=2)
        kernels.warning("another warning")
        kernels.removeFilter(is_no_kernel_remark)
        transformers_logging.warning_once.cache_clear()
        lens.generate([[5, 6, 7]], max_new_tokens=2)
    finally:
        kernels.addFilter(is_no_kernel_remark)
        root.removeHandler(handler)
    assert said[0] == "another warning" and "falling back to its reference" in said[1]
