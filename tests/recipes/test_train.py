"""Training lowers the loss, survives being killed, and writes the published layouts."""

import csv
import json
import random

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from floatlens.errors import FloatLensError
from recipes.tiny import curriculum, layouts, objectives
from recipes.tiny import train as training
from recipes.tiny.curriculum import ANSWER, END, FILL, STAGES
from recipes.tiny.model import adapt, hidden, start


@pytest.fixture(autouse=True)
def small(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(training, "CHECK", 6)
    monkeypatch.setattr(training, "SAVE", 30)


def run(kind, out, **options):
    return training.train(kind, out, steps=60, tokens=512, seed=3, progress=False, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of sixty steps of each kind that starts from nothing."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CHECK", 6)
        patch.setattr(training, "SAVE", 30)
        for kind in ("arm", "mdm"):
            run(kind, folder / kind)
    return folder


@pytest.mark.parametrize("kind", ["arm", "mdm"])
def test_sixty_steps_lower_the_loss(kind, whole):
    with (whole / kind / "curves.csv").open() as file:
        losses = [float(line["loss"]) for line in csv.DictReader(file)]
    assert len(losses) == 10
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("kind", ["arm", "mdm"])
def test_a_killed_run_resumes_to_the_same_state(kind, whole, tmp_path, monkeypatch):
    choose = curriculum.choose
    calls = iter(range(1000))

    def killed(*args):
        if next(calls) == 47:
            raise KeyboardInterrupt
        return choose(*args)

    monkeypatch.setattr(curriculum, "choose", killed)
    with pytest.raises(KeyboardInterrupt):
        run(kind, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "state.json").read_text())["step"] == 30
    monkeypatch.setattr(curriculum, "choose", choose)
    run(kind, tmp_path / "run", resume=True)
    once, twice = (load_file(f / "checkpoint.safetensors") for f in (whole / kind, tmp_path / "run"))
    assert once.keys() == twice.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)
    steps = [line.split(",")[0] for line in (tmp_path / "run" / "curves.csv").read_text().splitlines()[1:]]
    assert steps == [str(step) for step in range(6, 61, 6)]


def test_arm_and_mdm_start_from_the_same_weights():
    one, two = start(0).state_dict(), start(0).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_adapting_the_arm_changes_nothing_before_training():
    arm = start(1)
    ids_BT = torch.randint(10, 500, (2, 20))
    torch.testing.assert_close(hidden(adapt(arm), ids_BT, True), hidden(arm, ids_BT, True))


def test_only_the_bidirectional_model_sees_what_follows():
    model = start(0)
    ids_BT = torch.randint(10, 500, (1, 12))
    other_BT = ids_BT.clone()
    other_BT[0, -1] = 7
    for causal, differs in ((True, False), (False, True)):
        change = (hidden(model, ids_BT, causal) - hidden(model, other_BT, causal))[0, 0].abs().max()
        assert bool(change > 1e-4) is differs


def test_a_first_layer_head_starts_out_looking_at_each_neighbour():
    model = start(0)
    model.set_attn_implementation("eager")
    ids_BT = torch.randint(10, 500, (4, 30))
    attention_BHTT = model.model(ids_BT, is_causal=False, output_attentions=True, use_cache=False).attentions[0]
    for head, offset in enumerate((-1, 1, -2, 2)):
        mean = {o: attention_BHTT[:, head].diagonal(o, 1, 2).mean().item() for o in (-3, -2, -1, 0, 1, 2, 3)}
        assert max(mean, key=mean.get) == offset


def test_masks_cover_only_answers_or_anything_and_targets_are_what_was_hidden():
    ids_BT = torch.arange(6 * 40).view(6, 40) + 10
    roles_BT = torch.zeros(6, 40, dtype=torch.long)
    roles_BT[:, 30:33], roles_BT[:, 33], roles_BT[:, 34:] = ANSWER, END, FILL
    for true in (False, True):
        for shift in (False, True):
            plan = objectives.masked(ids_BT, roles_BT, torch.Generator().manual_seed(0), true=true, shift=shift)
            hidden_BT = plan.ids_BT != ids_BT
            assert torch.equal(plan.target_N, ids_BT[hidden_BT])
            assert plan.speak_BT.sum() == hidden_BT.sum() == len(plan.weight_N)
            moved_BT = hidden_BT.roll(-1, 1) if shift else hidden_BT
            assert torch.equal(plan.speak_BT, moved_BT)


def test_of_an_answer_that_is_begun_a_first_part_stands_there_and_nothing_else():
    ids_BT = torch.arange(200 * 40).view(200, 40) + 10
    roles_BT = torch.zeros(200, 40, dtype=torch.long)
    for at in (5, 30):
        roles_BT[:, at : at + 4], roles_BT[:, at + 4] = ANSWER, END
    roles_BT[:, 35:] = FILL
    plan = objectives.masked(
        ids_BT, roles_BT, torch.Generator().manual_seed(0), true=False, shift=True, blank=0.0, begun=1.0
    )
    hidden_BT = plan.ids_BT != ids_BT
    answers_only = hidden_BT[~(hidden_BT & (roles_BT == 0)).any(1) & hidden_BT[:, 35:].all(1)]
    assert len(answers_only) > 100
    for at in (5, 30):
        shown = answers_only[:, at : at + 4].int()
        assert (shown[:, 0] == 0).all() and (shown.diff(dim=1) >= 0).all()  # once a token is masked, the rest is
        assert answers_only[:, at + 4].all()
    assert set(answers_only[:, 30:34].sum(1).tolist()) == {0, 1, 2, 3}


def test_every_mix_makes_rows_that_fit_the_context():
    for mix in curriculum.MIXES.values():
        for _, make in mix.values():
            for number in range(3):
                ids_BT, roles_BT = curriculum.batch(make(random.Random(number), "train"), 512, 8)
                assert ids_BT.shape[1] <= 512 and (roles_BT == ANSWER).any(1).all()


def test_a_run_goes_on_from_another_with_a_schedule_of_its_own(whole, tmp_path):
    options = {"steps": 6, "tokens": 256, "progress": False, "after": whole / "mdm"}
    state = training.train("mdm", tmp_path / "more", **options, mix="chains")
    assert (state.step, state.began) == (66, 60)
    assert state.tokens > json.loads((whole / "mdm" / "state.json").read_text())["tokens"]
    with (tmp_path / "more" / "curves.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == [str(step) for step in range(6, 67, 6)]
    assert float(lines[-1]["rate"]) < 0.03 * 1e-3  # warm-up again
    with pytest.raises(FloatLensError, match="has no run of arm to continue"):
        training.train("arm", tmp_path / "other", **options)
    with pytest.raises(FloatLensError, match="no mix 'none' to train on; choose one of all, "):
        training.train("mdm", tmp_path / "other", **options, mix="none")
    assert not (tmp_path / "other").exists()


def test_every_stage_makes_rows_that_fit_the_context():
    for stage in STAGES:
        ids_BT, roles_BT = curriculum.batch(stage.make(random.Random(0), "train"), 1024, 8)
        assert ids_BT.shape == roles_BT.shape and ids_BT.shape[1] <= 512
        assert (roles_BT == ANSWER).any(1).all() and (roles_BT[:, -1] == FILL).all()


def test_the_arm_is_written_as_a_llama_that_transformers_loads(whole, tmp_path):
    layouts.write("arm", training.weights(whole / "arm"), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    native = start(0)
    rounded = {name: weight.half().float() for name, weight in training.weights(whole / "arm").items()}
    native.load_state_dict(rounded, strict=False)
    ids_BT = torch.randint(10, 500, (1, 16))
    torch.testing.assert_close(model(ids_BT).logits, native(ids_BT).logits)


def test_the_mdm_is_written_with_lladas_names(whole, tmp_path):
    layouts.write("mdm", training.weights(whole / "mdm"), tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "model.transformer.wte.weight" in names and "model.transformer.ff_out.weight" not in names
    assert "model.transformer.blocks.5.ff_out.weight" in names and len(names) == 2 + 6 * 9
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "llada" and config["weight_tying"] and config["mask_token_id"] == 2


def test_dream_is_written_with_qwens_names_and_biases(whole, tmp_path):
    arm = start(0)
    arm.load_state_dict(training.weights(whole / "arm"), strict=False)
    layouts.write("dream", dict(adapt(arm).named_parameters()), tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "model.layers.0.self_attn.q_proj.bias" in names and "model.layers.0.self_attn.o_proj.bias" not in names
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "Dream" and config["mask_token_id"] == 2


def test_what_cannot_be_trained_is_said(tmp_path, whole):
    with pytest.raises(FloatLensError, match="no model 'gpt' to train"):
        run("gpt", tmp_path / "a")
    with pytest.raises(FloatLensError, match="has no checkpoint"):
        run("arm", tmp_path / "b", resume=True)
    with pytest.raises(FloatLensError, match="already has a run"):
        run("arm", whole / "arm")
    with pytest.raises(FloatLensError, match="pass --arm RUN"):
        run("dream", tmp_path / "c")
