"""``specaudit train``: what it writes drafts for its target, and an interrupted run goes on where it was."""

import json

import numpy as np
import pytest
import torch
from commands import refused, specaudit
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from specaudit.acceptance.pair import load_pair
from specaudit.core.errors import InputError
from specaudit.core.zoo import ZOO
from specaudit.models.loading import load_model
from specaudit.training.drafts import untrained_draft
from specaudit.training.heads import depth_at
from specaudit.training.zoo import deepen

FEW = (
    "--target", "zoo:tiny", "--dataset", "zoo:prompts", "--limit", 6, "--max-new-tokens", 40, "--length", 32,
    "--step-tokens", 128,
)  # fmt: skip
SHAPES = {
    "medusa": ("--heads", 2, "--reduced", 256), "eagle": ("--depth", 2), "draft": ("--draft-hidden", 64),
    "eagle, generation 3": ("--depth", 2, "--generation", 3, "--reduced", 256),
}  # fmt: skip


def draft_name(kind, folder):
    return str(folder) if kind == "draft" else f"{kind}:{folder}"


@pytest.mark.parametrize("kind", SHAPES)
def test_what_is_trained_drafts_for_its_target(tmp_path, kind):
    out, shape = tmp_path / "made", SHAPES[kind]
    kind = kind.partition(",")[0]
    done = specaudit("train", kind, *FEW, *shape, "--steps", 12, "--out", out)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == f"use it with --draft {draft_name(kind, out)}"
    assert "acceptance by depth on held-out text: 0." in done.out
    assert json.loads((out / "config.json").read_text())["provenance"]["target"] == "zoo:tiny"
    pair = load_pair("zoo:tiny", draft_name(kind, out), dtype="float32", device="cpu")
    assert pair.drafter is not None
    few = ("--dataset", "zoo:prompts", "--limit", 2, "--max-new-tokens", 8)
    alone, drafted = (
        specaudit("generate", "--target", "zoo:tiny", *few, *more, "--json")
        for more in ((), ("--draft", draft_name(kind, out), "--k", 2))
    )
    ids = [[json.loads(line)["output_ids"] for line in run.out.splitlines()] for run in (alone, drafted)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("kind", ["eagle", "draft"])
def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path, monkeypatch, kind):
    """Progress is kept every hundred steps: stopped after the hundredth and started again."""
    argv = ("train", kind, *FEW, *SHAPES[kind], "--steps", 102)
    assert specaudit(*argv, "--out", tmp_path / "whole").code == 0
    steps, step = iter(range(101)), torch.optim.AdamW.step

    def stopped(optimizer):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        step(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", stopped)
    assert specaudit(*argv, "--out", tmp_path / "parts").code == 130
    monkeypatch.undo()
    assert not (tmp_path / "parts").exists()
    assert (tmp_path / "parts.training" / "training.pt").is_file()
    assert specaudit(*argv, "--out", tmp_path / "parts").code == 0
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)


def test_no_steps_make_an_untrained_draft(tmp_path):
    done = specaudit("train", "draft", *FEW, "--steps", 0, "--draft-layers", 2, "--out", tmp_path / "new")
    assert done.code == 0, done.err
    model = load_model(str(tmp_path / "new"), dtype="float32", device="cpu").model
    assert model.config.num_hidden_layers == 2
    found = float(done.out.splitlines()[0].rpartition(" ")[2])
    assert found < 0.2  # near uniform over 2,048 tokens, it agrees by the small probabilities alone


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("lora", (), ("KIND = 'lora': is not trained here", "use medusa, eagle or draft")),
        ("medusa", ("--steps", 0), ("--steps = 0: must be at least 1",)),
        ("eagle", ("--generation", 2), ("--generation = 2: EAGLE heads of generation 1 and 3", "use 1 or 3")),
        ("eagle", ("--reduced", 99), ("--reduced = 99: EAGLE-1 proposes by the target's own head", "--generation 3")),
        ("draft", ("--draft-layers", 0), ("--draft-layers = 0: must be at least 1",)),
        ("draft", ("--draft-hidden", 100), ("--draft-hidden = 100: zoo:tiny's attention heads are 64", "multiple of")),
        ("eagle", ("--length", 4096), ("--dataset = 'zoo:prompts': gives 1 windows", "give more prompts")),
    ],
)
def test_unusable_input(tmp_path, kind, changes, said):
    if "--length" in changes:  # found out when the text is there, which is kept
        done = specaudit("train", kind, *FEW, *changes, "--out", tmp_path / "new")
        assert done.code == 2
        assert all(part in done.err for part in said)
        assert not (tmp_path / "new").exists()
    elif changes[:1] == ("--draft-hidden",):
        with pytest.raises(InputError, match="multiple of 64"):
            untrained_draft(load_model("zoo:tiny", dtype="float32", device="cpu"), 1, 100)
    else:
        refused(tmp_path, ("train", kind, *FEW, *changes, "--out", tmp_path / "new"), *said)


def test_a_deepened_target_is_the_same_function():
    shallow = LlamaForCausalLM.from_pretrained(ZOO / "tiny" / "draft", dtype=torch.float32).eval()
    deep = deepen(shallow, 3).eval()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 2048, (2, 16)))
    assert deep.config.num_hidden_layers == 3
    with torch.no_grad():
        torch.testing.assert_close(deep(ids).logits, shallow(ids).logits, rtol=0, atol=0)
        deep.model.layers[1].mlp.down_proj.weight[0, 0] = 1.0
        assert not torch.equal(deep(ids).logits, shallow(ids).logits)


def test_chains_grow_late():
    assert [depth_at(progress, 3) for progress in (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 0.999)] == [1, 1, 1, 2, 2, 3, 3]
    assert {depth_at(progress, 1) for progress in (0.0, 0.7, 0.999)} == {1}
