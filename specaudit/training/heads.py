"""Trains Medusa and EAGLE heads on text that their target generated, against the target's own distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

from specaudit.core.artifacts import atomic_folder
from specaudit.core.errors import InputError
from specaudit.drafters.eagle_checkpoint import eagle_config, hidden_layers, save_eagle
from specaudit.drafters.eagle_head import EagleHead, EagleShape
from specaudit.drafters.medusa_heads import MedusaHeads, save_medusa
from specaudit.models.causal import HuggingFaceModel
from specaudit.training.teacher import Batch, Teacher, half_precision

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
Loss = Callable[[Batch, float], Tensor]  # of a batch, at a share of the schedule
Check = Callable[[Iterable[Batch]], list[float]]  # acceptance by depth
DEPTH_WEIGHT = 0.8  # of each depth over the one before it, as in both papers' code
WARM_UP_SHARE = 1 / 3  # of the steps, before acceptance itself is what is trained for
ONE_DEEP_SHARE = 1 / 2  # of the steps, before EAGLE's chains grow: most is learned one deep, at a fraction of the cost
RANKS = 8  # head accuracies are measured down to this rank


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: AdamW with a linear warm-up and a cosine down to a twentieth of ``peak``."""

    steps: int = 600
    tokens: int = 2048
    length: int = 256
    peak: float = 2e-3
    warm_up: int = 30
    check_every: int = 100

    def rate(self, step: int) -> float:
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        progress = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.peak * (0.05 + 0.95 * 0.5 * (1 + float(np.cos(np.pi * progress))))


def windows(texts: Sequence[ArrayLike], length: int) -> np.ndarray:
    """``[windows, length]`` pieces of the texts one after another; what is left at the end is dropped."""
    stream = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
    length = min(length, len(stream))
    return stream[: len(stream) // length * length].reshape(-1, length)


def train_head(
    head: nn.Module, loss_of: Loss, teacher: Teacher, held: int, schedule: Schedule, state: Path, check: Check, *,
    seed: int = 0, progress: Progress = lambda items, _total: items, say: Callable[[str], None] = lambda _text: None,
) -> list[float]:  # fmt: skip
    """Trains until ``schedule.steps``, resuming from ``state`` where that folder holds an earlier run's progress.

    Parameters
    ----------
    held : int
        How many of the teacher's windows, the last ones, are held out.
    check : callable
        Acceptance by depth on held-out batches, said every ``schedule.check_every`` steps.

    Returns
    -------
    list of float
        Acceptance by depth at the end.
    """
    optimizer = torch.optim.AdamW(head.parameters(), lr=schedule.peak, betas=(0.9, 0.95), weight_decay=0.01)
    first = _resume(state, head, optimizer)
    windows, length = teacher.texts.shape
    rows = max(1, schedule.tokens // length)
    found: list[float] | None = None
    for step in progress(range(first, schedule.steps), schedule.steps - first):
        # A generator a step: a run that was interrupted goes on with the batches it would have seen.
        chosen = np.random.default_rng([seed, step]).integers(windows - held, size=rows)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        batch = teacher.batch(chosen)
        with half_precision(batch.ids.device):
            loss = loss_of(batch, step / schedule.steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % schedule.check_every == 0 or step + 1 == schedule.steps:
            found = check(teacher.batches(rows, windows - held))
            say(f"step {step + 1}: loss {float(loss.detach()):.4f}, acceptance by depth {_shown(found)}")
            _keep(state, head, optimizer, step + 1)
    return check(teacher.batches(rows, windows - held)) if found is None else found  # the last step is checked


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _resume(state: Path, head: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    file = state / "training.pt"
    if not file.is_file():
        return 0
    saved = torch.load(file, map_location="cpu", weights_only=True)
    head.load_state_dict(saved["head"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def _keep(state: Path, head: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    with atomic_folder(state) as temporary:
        saved = {"head": head.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(saved, temporary / "training.pt")


def distillation(
    target_probs: Float[Tensor, "*context vocab"], draft_log_probs: Float[Tensor, "*context vocab"], progress: float
) -> Float[Tensor, ""]:
    """Forward KL in the first third, then mostly total variation, which is the share of rejected tokens.

    Zhou et al., DistillSpec, arXiv:2310.08461, section 3: the acceptance rate is one minus the total variation.
    """
    divergence = -(target_probs * draft_log_probs).sum(-1).mean()
    if progress < WARM_UP_SHARE:
        return divergence
    rejected = (target_probs - draft_log_probs.exp()).abs().sum(-1).mean() / 2
    return 0.1 * divergence + rejected


def medusa_loss(heads: MedusaHeads) -> Loss:
    """Cross entropy against the target's distributions, deeper heads weighing less (section 2.2.1, soft labels)."""

    def loss_of(batch: Batch, _progress: float) -> Tensor:
        total = torch.zeros(())
        for depth, (logits, probs) in enumerate(_medusa_pairs(heads, batch)):
            total = total + DEPTH_WEIGHT**depth * cross_entropy(logits.float().flatten(0, 1), probs.flatten(0, 1))
        return total

    return loss_of


def _medusa_pairs(heads: MedusaHeads, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Head i's logits at position t, and the target's distribution of token t + 2 + i over the head's vocabulary."""
    logits = heads(batch.final)
    for head in range(heads.heads):
        probs = batch.probs[:, 1 + head :]
        yield logits[:, : probs.shape[1], head], probs


@torch.inference_mode()
def medusa_accuracies(heads: MedusaHeads, batches: Iterable[Batch]) -> list[list[float]]:
    """For each head and rank, the probability that the target draws the head's token of that rank."""
    found = [
        torch.stack([probs.gather(-1, logits.topk(RANKS, -1).indices).mean((0, 1)).cpu()
                     for logits, probs in _medusa_pairs(heads, batch)])
        for batch in batches
    ]  # fmt: skip
    return torch.stack(found).mean(0).tolist()


def medusa_check(heads: MedusaHeads) -> Check:
    """The acceptance of each head's most probable token."""
    return lambda batches: [ranks[0] for ranks in medusa_accuracies(heads, batches)]


def eagle_loss(head: EagleHead, target: HuggingFaceModel, depth: int) -> Loss:
    """Distillation from the target's distributions, and at first a smooth L1 of the features, over a chain's depth.

    The head runs on its own predictions as it does when it drafts (EAGLE-3, section 3.1: training-time test), and the
    features are no end in themselves there either.
    """

    def loss_of(batch: Batch, progress: float) -> Tensor:
        total = torch.zeros(())
        for step, (states, logits) in enumerate(_eagle_steps(head, target, batch, depth_at(progress, depth))):
            loss = distillation(batch.probs[:, 1 + step : -1], logits.float().log_softmax(-1), progress)
            if progress < WARM_UP_SHARE:
                loss = loss + smooth_l1_loss(states.float(), batch.final[:, 1 + step : -1])
            total = total + DEPTH_WEIGHT**step * loss
        return total

    return loss_of


def depth_at(progress: float, depth: int) -> int:
    """How deep the chains of training are at a share of the schedule: one, and growing to ``depth`` near the end."""
    late = max(0.0, progress - ONE_DEEP_SHARE) / (1 - ONE_DEEP_SHARE)
    return 1 + min(depth - 1, int(late * depth))


def _eagle_steps(
    head: EagleHead, target: HuggingFaceModel, batch: Batch, depth: int
) -> Iterator[tuple[Float[Tensor, "batch pairs hidden"], Float[Tensor, "batch pairs outputs"]]]:
    """Entry s: what is read out at each pair t for position t + 1, s steps into a chain, and its logits."""
    with torch.no_grad():
        tokens = target.embed(batch.ids[:, 1:-1]).float()
    for step, features in enumerate(head.unroll(tokens, head.feature(batch.states[:, :-2]), depth)):
        states = head.readout(features[:, step:])
        yield states, target.head(states) if head.lm_head is None else head.lm_head(states)


def eagle_check(head: EagleHead, target: HuggingFaceModel, depth: int) -> Check:
    """The mean of sum(min(p, q)) by depth: the acceptance of a token sampled there, at temperature one."""

    @torch.inference_mode()
    def check(batches: Iterable[Batch]) -> list[float]:
        found = [
            [
                float(torch.minimum(logits.float().softmax(-1), batch.probs[:, 1 + step : -1]).sum(-1).mean())
                for step, (_, logits) in enumerate(_eagle_steps(head, target, batch, depth))
            ]
            for batch in batches
        ]
        return np.mean(found, axis=0).tolist()

    return check


def kept_windows(texts: Callable[[], Sequence[ArrayLike]], length: int, state: Path) -> np.ndarray:
    """``[windows, length]`` of what ``texts`` gives, kept in ``state`` for a run that goes on."""
    file = state / "texts.npy"
    if file.is_file():
        return np.load(file)
    made = windows(texts(), length)
    with atomic_folder(state) as temporary:
        np.save(temporary / "texts.npy", made)
    return made


def train_medusa(
    target: HuggingFaceModel, texts: np.ndarray, held: int, heads: int, reduced: int, schedule: Schedule, state: Path,
    out: Path, facts: dict[str, Any], **common: Any,
) -> list[float]:  # fmt: skip
    """Trains Medusa heads, the last ``held`` windows held out, and writes them with their accuracies by rank."""
    target.model.requires_grad_(False)
    torch.manual_seed(common.get("seed", 0))
    token_map = _most_frequent(texts, reduced, target) if reduced else None
    model = MedusaHeads(target.hidden_size, target.vocabulary, heads, 1, token_map=token_map).to(target.device)
    for head in model.lm_heads:  # as published heads do, start from the target's own head
        head.weight.data.copy_(_own_head(target, token_map))  # type: ignore[union-attr]
    teacher = Teacher(target, texts, (), state, token_map)
    train_head(model, medusa_loss(model), teacher, held, schedule, state, medusa_check(model), **common)
    accuracies = medusa_accuracies(model, teacher.batches(8, len(texts) - held))
    save_medusa(model, out, {"head_accuracies": accuracies, **facts})
    return [ranks[0] for ranks in accuracies]


def _most_frequent(texts: np.ndarray, count: int, target: HuggingFaceModel) -> Int[Tensor, " reduced"]:
    seen = np.bincount(texts.ravel(), minlength=target.vocabulary)
    return torch.from_numpy(np.sort(np.argsort(-seen, kind="stable")[:count])).to(target.device)


def _own_head(target: HuggingFaceModel, tokens: Tensor | None) -> Float[Tensor, "outputs hidden"]:
    weight = target.model.get_output_embeddings().weight.detach().float()
    return weight if tokens is None else weight[tokens]


def train_eagle(
    target: HuggingFaceModel, texts: np.ndarray, held: int, depth: int, generation: int, reduced: int,
    schedule: Schedule, state: Path, out: Path, facts: dict[str, Any], **common: Any,
) -> list[float]:  # fmt: skip
    """Trains an EAGLE head of one layer in the target's own shape, the last ``held`` windows held out."""
    target.model.requires_grad_(False)
    torch.manual_seed(common.get("seed", 0))
    tokens = _most_frequent(texts, reduced, target) if reduced else None
    head = EagleHead(_eagle_shape(target, generation, tokens)).to(target.device)
    teacher = Teacher(target, texts, _layers_read(out, target, generation), state, tokens)
    if head.lm_head is not None:
        # From the target's own head, whose input the norm's weight brings to the size that it has after the target's.
        head.lm_head.weight.data.copy_(_own_head(target, tokens))
        head.norm.weight.data.copy_(teacher.batch([0]).final.square().mean((0, 1)).sqrt())  # type: ignore[union-attr]
        ids = torch.arange(target.vocabulary, device=target.device) if tokens is None else tokens
        head.d2t = ids - torch.arange(len(ids), device=target.device)
    found = train_head(head, eagle_loss(head, target, depth), teacher, held, schedule, state,
                       eagle_check(head, target, depth), **common)  # fmt: skip
    save_eagle(head, out, facts)
    return found


def _layers_read(out: Path, target: HuggingFaceModel, generation: int) -> tuple[int, ...]:
    try:
        return hidden_layers(out, {}, target, generation)
    except InputError:
        problem = f"the target has {target.layer_count} layers, of which three far apart are read"
        raise InputError("--generation", generation, problem, "use --generation 1") from None


def _eagle_shape(target: HuggingFaceModel, generation: int, tokens: Tensor | None) -> EagleShape:
    config = target.config
    fields = {
        "hidden_size": target.hidden_size, "intermediate_size": getattr(config, "intermediate_size", None),
        "num_attention_heads": config.num_attention_heads, "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "max_position_embeddings": target.max_context, "rope_theta": 10000.0,
    }  # fmt: skip
    fields["intermediate_size"] = fields["intermediate_size"] or 4 * target.hidden_size
    return EagleShape(
        config=eagle_config(fields, target.vocabulary), generation=generation, target_hidden=target.hidden_size,
        vocabulary=target.vocabulary, outputs=target.vocabulary if tokens is None else len(tokens),
    )  # fmt: skip
