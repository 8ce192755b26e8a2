"""Distils a small draft model from a target, or makes one that has learned nothing, to compare with."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specaudit.core.artifacts import atomic_folder
from specaudit.core.errors import InputError
from specaudit.models.causal import HuggingFaceModel
from specaudit.training.heads import Check, Loss, Schedule, distillation, train_head
from specaudit.training.teacher import Batch, Teacher


def untrained_draft(target: HuggingFaceModel, layers: int, hidden: int | None = None) -> Any:
    """A model of the target's own kind with fewer and, if ``hidden`` is given, narrower layers, at random weights.

    Raises
    ------
    InputError
        If the target's attention heads cannot share ``hidden``.
    """
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types[:layers])
    if hidden is not None:
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if hidden % size:
            problem = f"{target.name}'s attention heads are {size} wide"
            raise InputError("--draft-hidden", hidden, problem, f"use a multiple of {size}")
        if getattr(config, "intermediate_size", None):  # where there is none it follows the hidden size
            config.intermediate_size = max(1, round(config.intermediate_size * hidden / config.hidden_size))
        config.num_key_value_heads = config.num_attention_heads = hidden // size
        config.hidden_size = hidden
    return AutoModelForCausalLM.from_config(config).float()


def draft_loss(draft: torch.nn.Module) -> Loss:
    """Distillation at temperature one from the target's distributions."""

    def loss_of(batch: Batch, progress: float) -> Tensor:
        return distillation(batch.probs, draft(batch.ids, use_cache=False).logits.float().log_softmax(-1), progress)

    return loss_of


def draft_check(draft: torch.nn.Module) -> Check:
    """The mean of sum(min(p, q)): the acceptance of a drafted token at temperature one, the same at every depth."""

    @torch.inference_mode()
    def check(batches: Iterable[Batch]) -> list[float]:
        overlaps = [
            torch.minimum(draft(batch.ids, use_cache=False).logits.float().softmax(-1), batch.probs).sum(-1).mean()
            for batch in batches
        ]
        return [float(torch.stack(overlaps).mean())]

    return check


def train_draft(
    target: HuggingFaceModel, texts: np.ndarray, held: int, layers: int, hidden: int | None, schedule: Schedule,
    state: Path, out: Path, facts: dict[str, Any], **common: Any,
) -> list[float]:  # fmt: skip
    """Distils a draft of ``layers`` layers on the target's own text, the last ``held`` windows held out."""
    target.model.requires_grad_(False)
    torch.manual_seed(common.get("seed", 0))
    draft = untrained_draft(target, layers, hidden).to(target.device)
    teacher = Teacher(target, texts, (), state)
    found = train_head(draft, draft_loss(draft), teacher, held, schedule, state, draft_check(draft), **common)
    save_draft(target, draft, out, facts)
    return found


def save_draft(target: HuggingFaceModel, draft: Any, folder: Path, facts: dict[str, Any]) -> None:
    """Writes an ordinary Hugging Face folder in bfloat16 with the target's tokenizer; ``facts`` go to its config."""
    draft.config.update(facts)
    with atomic_folder(folder) as temporary:
        draft.to(torch.bfloat16).save_pretrained(temporary)
        target.tokenizer.save_pretrained(temporary)
