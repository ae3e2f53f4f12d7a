"""Infilling: the masks inside a text are written, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatlens as fl
from floatlens.data.sequences import infill_prompt
from floatlens.options import Load
from floatlens.store.folder import RunFolder
from tests.commands import run
from tests.models import checkpoints
from tests.small_tokenizers import KINDS, byte_level, word_piece

TEXT = "Ada [MASK] lives in [MASK] [MASK]."


def masked(folder: Path, name: str, tokenizer: Any) -> Path:
    """A random model whose mask token is the tokenizer's."""
    if name == "llada":
        checkpoints.llada(folder, vocab=len(tokenizer) + 8)
    else:
        kind, fields = checkpoints.NATIVE[name]
        torch.manual_seed(0)
        config = getattr(transformers, kind)(**fields | {"vocab_size": len(tokenizer) + 8})
        auto = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
        model = auto.from_config(config)
        checkpoints.roughen(model)
        if name == "bert":  # a model that has learned never writes a special token
            model.cls.predictions.bias.data[tokenizer.all_special_ids] = -1000.0
        model.save_pretrained(folder)
    checkpoints.edit_config(folder, mask_token_id=tokenizer.mask_token_id, eos_token_id=tokenizer.sep_token_id)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return masked(tmp_path_factory.mktemp("bert"), "bert", word_piece())


@pytest.mark.parametrize("kind", KINDS)
def test_each_mask_is_one_token_in_the_place_of_a_word(kind: str) -> None:
    tokenizer = KINDS[kind]()
    mask = tokenizer.mask_token_id
    prompt = infill_prompt(tokenizer, TEXT, mask)
    assert prompt.tail is not None and prompt.tail.count(mask) == 3
    whole = [*prompt.ids, *prompt.tail]
    answer = [j for region in prompt.regions if region.name == "answer" for j in range(region.start, region.end)]
    assert answer == [j for j, id_ in enumerate(whole) if id_ == mask] and answer[2] == answer[1] + 1
    rest = tokenizer.decode([id_ for id_ in whole if id_ != mask], skip_special_tokens=True)
    assert "".join(rest.lower().split()) == "adalivesin."


def test_masks_are_written_in_the_order_of_confidence_as_by_hand(bert: Path) -> None:
    lens = fl.load(str(bert))
    trace = lens.infill(TEXT)
    tokenizer, model = lens.tokenizer, transformers.AutoModelForMaskedLM.from_pretrained(bert).eval()
    ids = torch.tensor(tokenizer(TEXT)["input_ids"])
    committed = torch.full_like(ids, -1)
    for step in range(3):
        assert trace.data["tokens"].values[step].tolist() == ids.tolist()
        with torch.no_grad():
            best = model(ids[None]).logits[0].softmax(-1).max(-1)
        at = int(best.values.masked_fill(ids != tokenizer.mask_token_id, -1).argmax())
        ids[at], committed[at] = best.indices[at], step
    assert trace.final_tokens.tolist() == ids.tolist()  # [SEP] at the end is kept
    assert trace.data["committed_at"].values.tolist() == committed.tolist()
    assert trace.text == tokenizer.decode(ids, skip_special_tokens=True).strip()
    spans = [(region.name, region.start, region.end) for region in trace.regions]
    assert spans[0] == ("bos", 0, 1) and [name for name, *_ in spans[1:]] == [
        "text",
        "answer",
        "text",
        "answer",
        "text",
    ]
    again = lens.generate(lens.infill_prompt(TEXT))
    assert again.text == trace.answer and again.ids == [int(i) for i in ids[committed >= 0]]


def test_infilling_in_a_batch_and_by_replay_gives_the_same(bert: Path) -> None:
    lens = fl.load(str(bert))
    texts = ["Ada Tarn [MASK] in [MASK].", "Where does Ada Tarn live? In [MASK] it [MASK]."]
    prompts = [lens.infill_prompt(text) for text in texts]
    for trace, prompt in zip(lens.traces(prompts), prompts, strict=True):
        alone = lens.traces([prompt])[0]
        assert trace.answer == alone.answer
        np.testing.assert_allclose(trace.data["received"].values, alone.data["received"].values, atol=1e-5)
        replayed = lens.traces([lens.with_answer(prompt, alone.written, alone.order)])[0]
        for name in alone.data.data_vars:
            np.testing.assert_array_equal(replayed.data[name].values, alone.data[name].values, err_msg=str(name))


def test_the_first_position_is_written_by_a_model_that_can_and_refused_by_one_that_cannot(tmp_path: Path) -> None:
    tokenizer = byte_level()
    lens = fl.load(str(masked(tmp_path / "llada", "llada", tokenizer)))
    trace = lens.infill("[MASK] lives in Molen.", regions={"place": (16, 22)})
    assert trace.data["committed_at"].values.tolist()[:2] == [0, -1] and trace.data.sizes["step"] == 1
    assert tokenizer.decode(trace.final_tokens[[trace.regions[1].start]]) == " Molen"
    with lens.intervene(fl.MaskAnchors("top(1)")):
        assert lens.infill("[MASK] lives in Molen.").data["committed_at"].values[0] == 0
    shifted = fl.load(str(masked(tmp_path / "shifted", "llama", tokenizer)), family="a2d-shifted")
    with pytest.raises(fl.FloatLensError, match="cannot write the first; put some text before the first mask"):
        shifted.infill("[MASK] lives in Molen.")
    trace = shifted.infill("Ada [MASK] in Molen.")
    with torch.no_grad():  # the row before the mask writes it
        row = shifted.model(torch.tensor([trace.data["tokens"].values[0].tolist()])).logits[0, trace.prompt_length - 1]
    assert trace.written[0] == int(row.argmax())
    arm = fl.load(str(tmp_path / "shifted"), family="causal")
    with pytest.raises(fl.FloatLensError, match="is autoregressive and writes only after a text"):
        arm.infill("Ada [MASK].")
    with pytest.raises(fl.FloatLensError, match="the text has no mask to fill"):
        lens.infill("Ada lives.")


@pytest.mark.parametrize(
    ("make", "family"),
    [
        (checkpoints.sdar, "sdar"),
        (checkpoints.llada2, "llada2"),
        (checkpoints.llada2, "llada2.1"),
        (checkpoints.a2d, "a2d-block"),
        (checkpoints.diffusion_gemma, "diffusion-gemma"),
    ],
)
def test_a_model_that_writes_in_blocks_is_refused_with_models_that_can(make: Any, family: str, tmp_path: Path) -> None:
    lens = fl.Lens.find(str(make(tmp_path)), Load(family=family))
    with pytest.raises(
        fl.FloatLensError, match=r"no block sees a later one; infill with a bidirectional model, such as"
    ):
        lens.infill("Ada [MASK] in Molen.")


def test_eval_scores_texts_with_masks_and_trace_shows_them(bert: Path, tmp_path: Path) -> None:
    lens = fl.load(str(bert))
    texts = ["Ada Tarn [MASK] in Molen.", "Where does [MASK] live?"]
    right = lens.generate(lens.infill_prompt(texts[0])).text
    rows = [{"infill": texts[0], "answers": [right]}, {"infill": texts[1], "answers": ["nobody at all"]}]
    data = tmp_path / "texts.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    table = fl.evaluate(lens, fl.read(str(data)))
    assert table["em"].tolist() == [1.0, 0.0] and table["answer"].iloc[0] == right
    done = run("trace", bert, "--text", texts[0], "--out", tmp_path / "run")
    [(_, path)] = RunFolder.open(tmp_path / "run").samples()
    assert fl.Trace.open(path).answer == right and "text      " in done.stdout
    page = fl.Trace.open(path).explore(frame=True)
    page.save(tmp_path / "film.html")
    assert (fl.Trace.open(path).data["committed_at"].values >= 0).sum() == 1
