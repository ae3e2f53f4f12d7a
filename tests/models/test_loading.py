"""Checkpoints in their published layout become native models; broken ones are errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatlens
from floatlens.errors import FloatLensError
from floatlens.models.checkpoint import find, is_local_path, split_name, without_loader_fields
from floatlens.models.describe import bytes_per_step, describe
from floatlens.models.weights import load_model
from floatlens.options import Load
from tests import golden_data
from tests.models import checkpoints

IDS = torch.tensor([[1, 7, 30, 12, 5, 44, 9, 3]])


@pytest.mark.golden
@pytest.mark.parametrize("name", golden_data.names("forward"))
def test_logits_and_hidden_states_are_those_of_the_published_code(name: str) -> None:
    expected = golden_data.arrays(f"forward/{name}.npz")
    model = golden_data.lens(name).model
    with torch.no_grad():
        out = model(torch.tensor(expected["input_ids"])[None], output_hidden_states=True)
    np.testing.assert_allclose(out.logits[0].numpy(), expected["logits"], atol=2e-5, rtol=0)
    found = torch.cat(out.hidden_states).numpy()
    np.testing.assert_allclose(found, expected["hidden_states"], atol=2e-5, rtol=0)


def logits(folder: Path, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return load_model(find(str(folder), Load(**options)))(IDS).logits


def test_shards_give_the_same_model_as_one_file(tmp_path: Path) -> None:
    one, three = checkpoints.llada(tmp_path / "one"), checkpoints.llada(tmp_path / "three", shards=3)
    assert logits(one).equal(logits(three))


def test_a_tied_checkpoint_needs_no_output_head(tmp_path: Path) -> None:
    model = load_model(find(str(checkpoints.llada(tmp_path, tied=True))))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_dream_is_qwen2_that_sees_both_ways(tmp_path: Path) -> None:
    causal = logits(checkpoints.native(tmp_path / "qwen2", "qwen2"))
    both = logits(checkpoints.dream(tmp_path / "dream"))
    assert not torch.allclose(causal, both)
    native = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "qwen2")
    mask = torch.zeros(1, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(native(IDS, attention_mask=mask).logits, both, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("make", "family"), [(checkpoints.a2d, "a2d"), (checkpoints.llada_moe, "llada-moe")])
def test_a_bidirectional_qwen3_reads_its_own_keys(make: Any, family: str, tmp_path: Path) -> None:
    found = find(str(make(tmp_path)))
    assert found.family.name == family
    model = load_model(found)
    # The last token moves the first one's logits: attention goes both ways.
    changed = IDS.clone()
    changed[0, -1] = 8
    with torch.no_grad():
        assert not torch.allclose(model(IDS).logits[0, 0], model(changed).logits[0, 0])


@pytest.mark.parametrize("name", [*checkpoints.NATIVE])
def test_native_models_have_their_family(name: str, tmp_path: Path) -> None:
    found = find(str(checkpoints.native(tmp_path, name)))
    assert found.family.name == ("masked" if name in checkpoints.MASKED else "causal")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_come_in_the_dtype_asked_for(dtype: str, tmp_path: Path) -> None:
    model = load_model(find(str(checkpoints.llada(tmp_path)), Load(dtype=dtype)))
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}


def test_remote_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    checkpoints.llada(tmp_path)
    trap = tmp_path / "ran"
    for name in ("configuration_llada.py", "modeling_llada.py", "tokenization_dream.py"):
        (tmp_path / name).write_text(f"open({str(trap)!r}, 'w')")
    floatlens.load(str(tmp_path))
    assert not trap.exists()


def test_a_config_cannot_name_the_weights_that_are_loaded(tmp_path: Path) -> None:
    expected = logits(checkpoints.native(tmp_path, "llama"))
    other = load_model(find(str(checkpoints.native(tmp_path / "other", "llama", seed=1)))).state_dict()
    torch.save(other, tmp_path / "adapter_model.bin")
    checkpoints.edit_config(tmp_path, transformers_weights="adapter_model.bin")
    assert logits(tmp_path).equal(expected)


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_cannot_name_a_kernel(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import hub_kernels

    def no_kernel(*_: Any, **__: Any) -> None:
        pytest.fail("a kernel was looked for")

    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", no_kernel)
    expected = logits(checkpoints.native(tmp_path, "llama"))
    checkpoints.edit_config(tmp_path, **{field: "stranger/kernel"})
    assert logits(tmp_path).equal(expected)


def test_a_part_of_a_config_cannot_name_a_kernel_either(tmp_path: Path) -> None:
    nested = transformers.Gemma3Config().to_dict()
    for part in ("text_config", "vision_config"):
        nested[part] |= {"attn_implementation": "stranger/kernel", "_attn_implementation": "stranger/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    config = find(str(tmp_path), Load(family="causal")).native_config()
    for part in (config, config.text_config, config.vision_config):
        assert part._attn_implementation is None


def test_a_config_cannot_refer_to_another_config(tmp_path: Path) -> None:
    folder = checkpoints.native(tmp_path, "llama")
    other = json.loads((folder / "config.json").read_text()) | {"transformers_weights": "adapter_model.bin"}
    (folder / "config.4.0.0.json").write_text(json.dumps(other))
    checkpoints.edit_config(folder, configuration_files=["config.4.0.0.json"])
    assert not hasattr(find(str(folder)).native_config(), "transformers_weights")


def test_an_adapter_inside_a_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = checkpoints.native(tmp_path, "llama")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "stranger/model"}')
    with pytest.raises(FloatLensError, match="pass MODEL[+]FOLDER with that folder"):
        load_model(find(str(folder)))


def test_safetensors_are_checked_also_where_pickles_are_allowed(tmp_path: Path) -> None:
    checkpoints.llada(tmp_path)
    weights = tmp_path / "model.safetensors"
    torch.save({}, tmp_path / "training_args.bin")
    assert logits(tmp_path, allow_pickle=True).equal(logits(tmp_path))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(FloatLensError, match="is not a complete safetensors file"):
        load_model(find(str(tmp_path), Load(allow_pickle=True)))


def test_an_index_of_pickles_names_no_file_outside_the_folder(tmp_path: Path) -> None:
    folder = checkpoints.llada(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({}, tmp_path / "secret.bin")
    index = {"metadata": {}, "weight_map": {"model.transformer.wte.weight": "../secret.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(FloatLensError, match="which is not a .bin file of the folder"):
        load_model(find(str(folder), Load(allow_pickle=True)))


def test_dreams_tokenizer_is_read_by_the_native_class(tmp_path: Path) -> None:
    checkpoints.dream(tmp_path)
    letters = {letter: i for i, letter in enumerate("abcdefgh")} | {"Ġ": 8, "ab": 9, "<|endoftext|>": 10}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokens = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens | {"eos_token": "<|endoftext|>"}))
    tokenizer = floatlens.load(str(tmp_path)).tokenizer
    assert tokenizer is not None and tokenizer("abc")["input_ids"] == [9, 2]


def broken(folder: Path, what: str) -> None:
    config = folder / "config.json"
    weights = folder / "model.safetensors"
    if what == "no config":
        config.unlink()
    elif what == "bad json":
        config.write_text("{")
    elif what == "a list":
        config.write_text("[]")
    elif what == "unknown type":
        checkpoints.edit_config(folder, model_type="ufo")
    elif what == "missing field":
        config.write_text(json.dumps({k: v for k, v in json.loads(config.read_text()).items() if k != "n_layers"}))
    elif what == "wrong field":
        checkpoints.edit_config(folder, n_heads="four")
    elif what == "other activation":
        checkpoints.edit_config(folder, activation_type="gelu")
    elif what == "no weights":
        weights.unlink()
    elif what == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif what == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif what == "garbage":
        weights.write_bytes(b"\xff" * 1000)
    elif what == "too few layers":
        checkpoints.edit_config(folder, n_layers=5)
    elif what == "other shape":
        checkpoints.edit_config(folder, mlp_hidden_size=40)
    elif what == "missing shard":
        next(folder.glob("model-00002*")).unlink()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no config", "config.json is missing"),
        ("bad json", "is not valid JSON"),
        ("a list", "expected a JSON object, found list"),
        ("unknown type", "field 'model_type' is 'ufo'"),
        ("missing field", "field 'n_layers' is missing; expected a number"),
        ("wrong field", "field 'n_heads' is 'four'; expected a number"),
        ("other activation", "field 'activation_type' is 'gelu'"),
        ("no weights", "model.safetensors is missing"),
        ("pickle", "pytorch_model.bin, a pickle"),
        ("truncated", "is not a complete safetensors file"),
        ("garbage", "is not a complete safetensors file"),
        ("too few layers", "no weights for 18 tensors"),
        ("other shape", "numbers in the weights, but 1,280 in a model of its config"),
        ("missing shard", "which is not a .safetensors file of the folder"),
    ],
)
def test_a_broken_checkpoint_gets_one_clear_sentence(what: str, said: str, tmp_path: Path) -> None:
    checkpoints.llada(tmp_path, shards=3 if "shard" in what else 1)
    broken(tmp_path, what)
    with pytest.raises(FloatLensError) as caught:
        floatlens.load(str(tmp_path))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(FloatLensError, match="tiny-arm, tiny-mdm, tiny-dream"):
        find("no-such-model")


def test_inspection_counts_what_a_loaded_model_has(tmp_path: Path) -> None:
    found = find(str(checkpoints.llada(tmp_path)))
    about = describe(found, positions=100)
    model = load_model(found)
    assert about["parameters"] == sum(p.numel() for p in model.parameters())
    assert about["mask_token_id"] == 63 and about["layers"] == 3 and about["context"] == 128
    trace = floatlens.load(str(tmp_path)).trace([5] * 92, max_new_tokens=8, steps=2)
    heavy = sum(trace.data[n].nbytes for n in ("received", "qk", "qk_norm", "qk_cos", "value_norm"))
    assert about["record_bytes_per_step"] == heavy // 2


def test_inspection_reads_no_weights(tmp_path: Path) -> None:
    checkpoints.llada(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert describe(find(str(tmp_path)))["family"] == "llada"


def test_a_config_without_a_model_type_is_named(tmp_path: Path) -> None:
    folder = checkpoints.native(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FloatLensError, match="config.json has no field 'model_type'"):
        floatlens.load(str(folder), family="causal")


def test_a_config_loses_the_fields_that_select_what_is_loaded_at_any_depth() -> None:
    inner = {"attn_implementation": "someone/kernel", "n_heads": 4}
    assert without_loader_fields({"n_layers": 2, "text_config": inner}) == {
        "n_layers": 2,
        "text_config": {"n_heads": 4},
    }


def test_a_name_may_end_with_a_mode_and_may_mean_a_folder() -> None:
    assert split_name("org/name:arm") == ("org/name", {"mode": "arm"}) and split_name("org/name") == ("org/name", {})
    names = ("./model", "~/model", "out/checkpoint-500", "Qwen/Qwen3-0.6B")
    assert [is_local_path(name) for name in names] == [True, True, True, False]


def test_a_step_of_llada_8b_records_six_megabytes() -> None:
    """32 layers and 300 positions, with four numbers per head and one per key/value head, of four bytes each."""
    assert bytes_per_step(layers=32, heads=32, kv_heads=32, positions=300) == 32 * 300 * 5 * 32 * 4
