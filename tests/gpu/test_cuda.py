"""What the CPU tests hold, on a CUDA device: the cache, the decode loop, the laws and the audit."""

import numpy as np
import pytest
import torch

from specaudit.audit import greedy
from specaudit.audit.exact_law import largest_error, random_case
from specaudit.audit.lossless import audit
from specaudit.audit.noise import measure_noise
from specaudit.core.sampling import TokenCounts, penalise, processed_probs, sample
from specaudit.core.types import Limits, Proposal, SamplingParams
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.models.kv_cache import RowCache
from specaudit.models.target import ModelTarget
from specaudit.verify import RejectionVerifier, lossless_verifier

GREEDY = SamplingParams(temperature=0)
TRUNCATED = SamplingParams(temperature=0.8, top_p=0.9, seed=5)
PENALISED = SamplingParams(temperature=0.8, top_k=20, repetition_penalty=1.2, frequency_penalty=0.1, seed=6)


def run(models, draft, params, prompts, *, seeds=None, tokens=24, model="target"):
    target = models[model]
    drafter = None if draft is None else create_drafter(draft, target, lambda _: models["draft"])
    return decode(
        ModelTarget(target), drafter, lossless_verifier(params), prompts, params, Limits(tokens), k=4, seeds=seeds
    ).transcripts


def assert_equal_or_tied(model, transcripts, expected):
    if [t.output_ids for t in transcripts] != [t.output_ids for t in expected]:
        params = transcripts[0].sampling
        defects, details = greedy.check(model, transcripts, params, measure_noise(model, expected, params))
        assert defects == 0, details


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
def test_greedy_output_is_the_baselines(models, prompts, draft, batch):
    decoded = run(models, draft, GREEDY, prompts[:batch])
    assert_equal_or_tied(models["target"], decoded, run(models, None, GREEDY, prompts[:batch]))
    assert any(any(transcript.rounds) for transcript in decoded) or draft != "draft"


def test_greedy_output_is_the_cpus(models, prompts):
    on_cpu = run(models, None, GREEDY, prompts, model="cpu")
    assert_equal_or_tied(models["target"], run(models, None, GREEDY, prompts), on_cpu)


@pytest.mark.parametrize("params", [TRUNCATED, PENALISED], ids=["truncated", "penalised"])
@pytest.mark.parametrize("draft", [None, "draft", "prompt-lookup"])
def test_a_row_is_the_same_alone_and_in_any_batch(models, prompts, draft, params):
    """In float64, where the shape of a batch moves no draw."""
    double = {name: model.__class__(model.model.double(), None, model.name, "") for name, model in models.items()}
    try:
        seeds = [101, 102, 103, 104, 105]
        together = run(double, draft, params, prompts, seeds=seeds)
        alone = [run(double, draft, params, [p], seeds=[s])[0].output_ids for p, s in zip(prompts, seeds, strict=True)]
        assert [transcript.output_ids for transcript in together] == alone
    finally:
        for model in models.values():
            model.model.float()


def test_ragged_rows_give_the_logits_of_an_ordinary_pass(models, prompts):
    model, draws = models["target"], np.random.default_rng(3)
    rows, texts = model.open_rows(len(prompts), 40), [list(prompt) for prompt in prompts]
    rows.read(prompts)
    for width in (3, 1, 5, 2):
        fed = draws.integers(0, model.vocabulary, size=(len(texts), width)).tolist()
        logits = rows.forward(torch.tensor(fed, device=model.device))
        assert logits.is_cuda
        for text, tokens, row in zip(texts, fed, logits, strict=True):
            with torch.inference_mode():
                whole = model.model(input_ids=torch.tensor([text + tokens], device=model.device)).logits[0, -width:]
            torch.testing.assert_close(row, whole, atol=1e-3, rtol=1e-3)
        kept = draws.integers(0, width + 1, size=len(texts)).tolist()
        rows.commit(kept)
        texts = [text + tokens[:count] for text, tokens, count in zip(texts, fed, kept, strict=True)]
        if width == 5:
            rows.keep([4, 0, 2])
            texts = [texts[4], texts[0], texts[2]]
    assert rows.lengths == [len(text) for text in texts]


def test_the_row_caches_positions_and_masks_are_the_cpus():
    caches = [RowCache(1, 3, 16, device) for device in ("cuda", "cpu")]
    for lengths in ([4, 4, 4], [1, 6, 3]):
        for cache in caches:
            cache.lengths = list(lengths)
            cache.prepare(3)
        for window in (None, 4):
            masks = [cache.causal_mask(torch.float32, window).cpu() for cache in caches]
            assert torch.equal(*masks)
        assert torch.equal(*(cache.positions().cpu() for cache in caches))


def test_laws_and_draws_are_the_cpus():
    generator = torch.Generator().manual_seed(0)
    logits, uniforms = torch.randn(64, 500, generator=generator), torch.rand(64, generator=generator).double()
    counts = TokenCounts.of([[1, 2]] * 64, 500, "cpu")
    params = PENALISED
    probs = processed_probs(penalise(logits, counts.prompt, counts.output, params), params)
    device_counts = TokenCounts.of([[1, 2]] * 64, 500, "cuda")
    on_device = processed_probs(penalise(logits.cuda(), device_counts.prompt, device_counts.output, params), params)
    torch.testing.assert_close(on_device.cpu(), probs, atol=1e-6, rtol=1e-5)
    assert torch.equal(sample(probs.cuda(), uniforms.cuda()).cpu(), sample(probs, uniforms))


class OnDevice:
    """Runs the verifier on the CUDA device for the integration, which is on the CPU."""

    def __call__(self, target_probs, proposal, uniforms):
        dense = proposal.draft_probs if isinstance(proposal.draft_probs, str) else proposal.draft_probs.cuda()
        moved = Proposal(proposal.tokens.cuda(), proposal.lengths, dense)
        found = RejectionVerifier()(target_probs.cuda(), moved, uniforms.cuda())
        return type(found)(found.accepted.cpu(), found.extra_token.cpu(), found.bonus.cpu())


@pytest.mark.parametrize("point_mass", [False, True])
def test_the_emission_law_is_the_targets(point_mass):
    case = random_case(np.random.default_rng(5), 4, 2, point_mass=point_mass)
    assert largest_error(OnDevice(), case) < 1e-12


@pytest.mark.parametrize("params", [GREEDY, TRUNCATED], ids=["greedy", "truncated"])
def test_the_own_decoder_is_not_accused(models, prompts, params):
    transcripts = run(models, "draft", params, prompts * 4, tokens=40)
    drafter = create_drafter("draft", models["target"], lambda _: models["draft"])
    result = audit(models["target"], drafter, transcripts)
    assert result["verdict"] == "no_violation_found", result["tests"]
