"""Trains the bundled pair: ``python -m specaudit.training.zoo --corpus DIR --out specaudit/zoo/tiny``.

The target is a small llama trained on text, shallow first and then deepened by blocks that start as the identity (Wu
et al., LLaMA Pro, arXiv:2401.02415). The draft has one layer and is distilled from the target's own distribution, on
text and on the target's own samples (Zhou et al., DistillSpec, arXiv:2310.08461), first with the forward KL divergence
and then with the total variation distance, which is one minus the acceptance rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specaudit.models.loading import load_model
from specaudit.training import corpus, heads
from specaudit.training.teacher import half_precision

CATEGORY_WEIGHTS = {"dialogue": 0.25, "word_problem": 0.35, "code": 0.4}
TOKENS_PER_STEP = 8192
BLOCK_TOKENS, LONG_BLOCK_TOKENS = 512, 2048
LONG_BLOCK_SHARE = 0.1  # the last tenth of the steps sees the whole context
HELD_OUT_SHARE = 0.03
DRAFT_SHAPE = {
    "num_hidden_layers": 1, "hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 2,
    "num_key_value_heads": 2,
}  # fmt: skip
MEDUSA_HEADS, MEDUSA_TOKENS = 3, 1024  # the most frequent half of the vocabulary, to stay small
EAGLE_DEPTH = 4
HELD_OUT_WINDOWS = 64
TEMPERATURES = (1.0, 0.8)  # sampled from, and matched at, in turn

Streams = list[tuple[np.ndarray, float]]
Loss = Callable[[torch.Tensor, float], torch.Tensor]


def target_config(vocabulary: int) -> LlamaConfig:
    """About 6.4 million parameters: 8 layers of 256, before they are deepened."""
    return LlamaConfig(
        vocab_size=vocabulary, hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LONG_BLOCK_TOKENS, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip


def deepen(model: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """The same function in ``layers`` layers: copies, evenly spread, whose output projections are zero (LLaMA Pro)."""
    old = model.config.num_hidden_layers
    deep = LlamaForCausalLM(LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": layers, "layer_types": None}))
    deep.load_state_dict(model.state_dict(), strict=False)  # all but the layers: these are copied below
    source = [layer * old // layers for layer in range(layers)]
    for place, layer in enumerate(source):
        block = cast("Any", deep.model.layers[place])
        block.load_state_dict(model.model.layers[layer].state_dict())
        if place and source[place - 1] == layer:
            nn.init.zeros_(block.self_attn.o_proj.weight)
            nn.init.zeros_(block.mlp.down_proj.weight)
    return deep


def draft_config(target: LlamaConfig) -> LlamaConfig:
    """One narrow layer: at this size a pass costs calls more than arithmetic, so width costs less than depth."""
    return LlamaConfig(**{**target.to_dict(), **DRAFT_SHAPE})


def train(
    model: torch.nn.Module, streams: Streams, loss_of: Loss, *, steps: int, peak: float, seed: int, name: str
) -> None:
    """Runs ``steps`` of AdamW on windows of ``streams``; ``loss_of(ids, progress)`` gives the loss of one batch."""
    generator = np.random.default_rng(seed)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)
    schedule = heads.Schedule(steps=steps, peak=peak, warm_up=60)
    started = time.monotonic()
    running = 0.0
    for step in range(steps):
        length = LONG_BLOCK_TOKENS if step >= steps * (1 - LONG_BLOCK_SHARE) else BLOCK_TOKENS
        ids = torch.from_numpy(corpus.blocks(streams, TOKENS_PER_STEP // length, length, generator))
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of(ids, step / steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        running += float(loss.detach())
        if (step + 1) % 25 == 0:
            seconds = time.monotonic() - started
            print(f"{name} step {step + 1}/{steps} loss {running / 25:.4f} {seconds:.0f} s", flush=True)
            running = 0.0


def logits_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Float32 logits, from a bfloat16 pass where that is fast."""
    with half_precision(ids.device):
        return model(ids, use_cache=False).logits.float()


def language_loss(model: torch.nn.Module) -> Loss:
    """Cross entropy of the next token."""

    def loss_of(ids: torch.Tensor, _progress: float) -> torch.Tensor:
        logits = logits_of(model, ids[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return loss_of


def distillation_loss(draft: torch.nn.Module, target: torch.nn.Module) -> Loss:
    """At both temperatures in turn."""
    turn = itertools.cycle(TEMPERATURES)

    def loss_of(ids: torch.Tensor, progress: float) -> torch.Tensor:
        temperature = next(turn)
        with torch.no_grad():
            target_probs = (logits_of(target, ids) / temperature).softmax(-1)
        return heads.distillation(target_probs, (logits_of(draft, ids) / temperature).log_softmax(-1), progress)

    return loss_of


@torch.inference_mode()
def sample(target: Any, streams: Streams, tokens: int, seed: int, rows: int = 96, new: int = 256) -> np.ndarray:
    """About ``tokens`` tokens continued by the target itself from windows of text, at temperatures 1 and 0.8."""
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    pieces, total, turn = [], 0, 0
    while total < tokens:
        prompt = torch.from_numpy(corpus.blocks(streams, rows, int(generator.integers(8, 64)), generator))
        ids = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, pad_token_id=0,
            temperature=TEMPERATURES[turn % len(TEMPERATURES)], max_new_tokens=new, min_new_tokens=new,
        )  # fmt: skip
        pieces.append(ids.flatten().numpy())
        total, turn = total + ids.numel(), turn + 1
    return np.concatenate(pieces)


@torch.inference_mode()
def mean_overlap(target: torch.nn.Module, draft: torch.nn.Module, stream: np.ndarray, rows: int = 32) -> float:
    """The mean of sum(min(p, q)) at temperature one over ``rows`` windows: the acceptance of one drafted token."""
    ids = torch.from_numpy(corpus.blocks([(stream, 1.0)], rows, BLOCK_TOKENS, np.random.default_rng(0)))
    return float(torch.minimum(logits_of(target, ids).softmax(-1), logits_of(draft, ids).softmax(-1)).sum(-1).mean())


def save(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes an ordinary Hugging Face folder in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.float()


def openings(text: str, category: str) -> list[str]:
    """Places to start from in one document: a whole question, a speech of a scene, a module's head or a definition."""
    if category == "word_problem":
        return [text.split("\nAnswer:")[0] + "\nAnswer:"]
    lines = text.splitlines(keepends=True)
    if category == "dialogue":
        starts = [0] + [number + 1 for number, line in enumerate(lines[:-4]) if not line.strip()]
        starts, length = starts[::3], 4
    else:
        starts = [0] + [n for n, line in enumerate(lines[:-12]) if n > 12 and line.startswith(("def ", "class "))]
        length = 12
    return ["".join(lines[start : start + length])[:400].rstrip() for start in starts]


def write_prompts(documents: dict[str, list[str]], path: Path, per_category: int) -> None:
    """Held-out openings, as many of one document as of another."""
    rows = []
    for category, texts in sorted(documents.items()):
        by_document = [openings(text, category) for text in texts]
        in_turn = [text for turn in itertools.zip_longest(*by_document) for text in turn if text]
        rows += [{"prompt": prompt, "category": category} for prompt in in_turn[:per_category]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def train_heads(out: Path, samples: np.ndarray, medusa_steps: int, eagle_steps: int, seed: int) -> None:
    """Medusa and EAGLE heads for the target in ``out``, on what it sampled; no steps, no head."""
    target = load_model(str(out / "target"), dtype="float32", device="cpu")
    texts = heads.windows([samples], 256)
    np.random.default_rng(seed).shuffle(texts)
    common = {"seed": seed, "say": lambda text: print(text, flush=True)}
    if medusa_steps:
        heads.train_medusa(
            target, texts, HELD_OUT_WINDOWS, MEDUSA_HEADS, MEDUSA_TOKENS, heads.Schedule(steps=medusa_steps),
            out.with_name("medusa.training"), out / "medusa", {}, **common,
        )  # fmt: skip
    if eagle_steps:
        heads.train_eagle(
            target, texts, HELD_OUT_WINDOWS, EAGLE_DEPTH, 1, 0, heads.Schedule(steps=eagle_steps),
            out.with_name("eagle.training"), out / "eagle", {}, **common,
        )  # fmt: skip


def main() -> None:
    """Trains the target, samples from it, distils the draft, and trains heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of .txt, .jsonl (question, answer) and .py")
    parser.add_argument("--out", type=Path, default=Path("specaudit/zoo/tiny"))
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument(
        "--target",
        choices=("new", "deepen", "keep"),
        default="new",
        help="a new one; the one in --out deepened to --layers and trained on; or the one in --out",
    )
    parser.add_argument("--draft", choices=("new", "continue", "keep"), default="new", help="likewise")
    parser.add_argument("--layers", type=int, default=12, help="layers of a deepened target")
    parser.add_argument("--target-steps", type=int, default=1200)
    parser.add_argument("--target-peak", type=float, default=3e-3, help="largest learning rate of the target")
    parser.add_argument("--draft-steps", type=int, default=900)
    parser.add_argument("--sample-tokens", type=int, default=1_000_000)
    parser.add_argument("--standard-library", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--medusa-steps", type=int, default=300, help="0: train no Medusa heads")
    parser.add_argument("--eagle-steps", type=int, default=700, help="0: train no EAGLE head")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    documents = corpus.read_documents(options.corpus, standard_library=options.standard_library, seed=options.seed)
    if not documents:
        parser.error(f"--corpus {options.corpus}: no .txt, .jsonl or .py file is in it; name a folder with text")
    held_out = {c: texts[: max(1, int(len(texts) * HELD_OUT_SHARE))] for c, texts in documents.items()}
    text = {c: texts[len(held_out[c]) :] for c, texts in documents.items()}
    if options.target != "new":
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.out / "target")
    else:
        tokenizer = corpus.train_tokenizer((t[:20_000] for texts in text.values() for t in texts), options.vocabulary)
    streams = [(corpus.pack(texts, tokenizer), CATEGORY_WEIGHTS[c]) for c, texts in text.items()]
    held_out_stream = np.concatenate([corpus.pack(texts, tokenizer)[:20_000] for texts in held_out.values()])
    print({c: len(s[0]) for c, s in zip(text, streams, strict=True)}, "tokens of text", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    write_prompts(held_out, options.out / "prompts.jsonl", per_category=40)

    def faster(module: torch.nn.Module) -> torch.nn.Module:
        return cast("torch.nn.Module", torch.compile(module, dynamic=False)) if options.compile else module

    if options.target != "keep":
        target = LlamaForCausalLM(target_config(options.vocabulary))
        if options.target == "deepen":
            target = deepen(
                LlamaForCausalLM.from_pretrained(options.out / "target", dtype=torch.float32), options.layers
            )
        train(target, streams, language_loss(faster(target)), steps=options.target_steps, peak=options.target_peak,
              seed=options.seed, name="target")  # fmt: skip
        save(target, tokenizer, options.out / "target")
    target = LlamaForCausalLM.from_pretrained(options.out / "target", dtype=torch.float32)  # as users will load it
    target.requires_grad_(False)

    kept = options.out.with_name(f"{options.out.name}.samples.npy")
    if options.target != "keep" or not kept.is_file():
        np.save(kept, sample(target, streams, options.sample_tokens, options.seed + 1))
    samples = np.load(kept)
    print(f"{len(samples)} tokens sampled from the target", flush=True)
    if options.draft != "keep":
        distil(target, tokenizer, streams, samples, held_out_stream, options, faster)
    train_heads(options.out, samples, options.medusa_steps, options.eagle_steps, options.seed + 4)


def distil(
    target: Any, tokenizer: PreTrainedTokenizerFast, streams: Streams, samples: np.ndarray, held_out: np.ndarray,
    options: argparse.Namespace, faster: Callable[[torch.nn.Module], torch.nn.Module],
) -> None:  # fmt: skip
    """Trains the draft on text and samples, and prints how much it agrees with the target."""
    draft = LlamaForCausalLM(draft_config(target.config))
    if options.draft == "continue":
        draft = LlamaForCausalLM.from_pretrained(options.out / "draft", dtype=torch.float32)
    mixed = [(samples, 1.0), *((stream, weight) for stream, weight in streams)]
    loss = distillation_loss(faster(draft), faster(target))
    train(draft, mixed, loss, steps=options.draft_steps, peak=3e-3, seed=options.seed + 2, name="draft")
    save(draft, tokenizer, options.out / "draft")
    own = sample(target, [(held_out, 1.0)], 60_000, options.seed + 3)
    print(f"overlap on held-out text {mean_overlap(target, draft, held_out):.3f}", flush=True)
    print(f"overlap on the target's own samples {mean_overlap(target, draft, own):.3f}", flush=True)


if __name__ == "__main__":
    main()
