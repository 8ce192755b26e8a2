"""A target with its drafter, and the prompts they are to run on: loaded and checked before any work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specaudit.acceptance.workloads import Workload, prompt_ids
from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.decode import decode_batches
from specaudit.drafters import create_drafter, means_model
from specaudit.models.causal import HuggingFaceModel
from specaudit.models.loading import check_same_tokenizer, load_model
from specaudit.models.target import ModelTarget
from specaudit.verify import LOSSLESS, verifier_of


@dataclass(frozen=True)
class Pair:
    """What runs: the target, its drafter if there is one, and facts about both for provenance."""

    target: HuggingFaceModel
    drafter: Drafter | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class PromptSet:
    """Prompts as the target's token ids. ``skipped`` counts what the data set held and was left out, by reason."""

    ids: list[list[int]]
    categories: list[str | None]
    name: str
    fingerprint: str
    skipped: dict[str, int]

    def piece(self, first: int, size: int) -> PromptSet:
        """At most ``size`` of the prompts, from place ``first``."""
        kept = slice(first, first + size)
        return dataclasses.replace(self, ids=self.ids[kept], categories=self.categories[kept])


def load_pair(
    target: str | HuggingFaceModel, draft: str | None, *, dtype: str = "auto", device: str = "auto",
    allow_pickle: bool = False, tree: str | None = None,
) -> Pair:  # fmt: skip
    """Loads a target, unless it is loaded, and what drafts for it; a draft model must share the target's tokenizer.

    Raises
    ------
    InputError
        If either cannot be loaded, or the draft does not fit the target.
    """
    options: dict[str, Any] = {"dtype": dtype, "device": device, "allow_pickle": allow_pickle}
    # The smaller one first: what is wrong with it should not be said minutes later.
    loaded = [load_model(draft, role="draft", **options)] if draft and means_model(draft) else []
    model = load_model(target, role="target", **options) if isinstance(target, str) else target

    def load_draft(_name: str) -> CausalModel:
        check_same_tokenizer(model, loaded[0])
        return loaded[0]

    drafter = create_drafter(draft, model, load_draft, tree) if draft else None
    facts = {
        "target": model.name, "target_content": model.content, "draft": drafter.name if drafter else None,
        "draft_content": loaded[0].content if loaded else drafter.content if drafter else None,
        "declares_lossy": drafter.declares_lossy if drafter else None,
        "dtype": model.dtype_name, "device": str(model.device),
    }  # fmt: skip
    return Pair(model, drafter, facts)


def encode(
    workload: Workload, target: CausalModel, *, chat: bool | None, max_prompt_tokens: int | None = None
) -> PromptSet:
    """Token ids of a workload's prompts.

    Raises
    ------
    InputError
        If a prompt leaves no room in the target's context and ``max_prompt_tokens`` does not leave it out.
    """
    ids, categories, skipped = [], [], dict(workload.skipped)
    for prompt in workload.prompts:
        tokens = prompt_ids(prompt, target.tokenizer, chat=chat)
        if max_prompt_tokens is not None and len(tokens) > max_prompt_tokens:
            reason = f"longer than {max_prompt_tokens} tokens"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        if len(tokens) >= target.max_context:
            raise InputError(
                "--dataset", f"row {prompt.index} of {workload.name}: {len(tokens)} tokens",
                f"{target.name}'s context holds {target.max_context}",
                f"leave longer prompts out with --max-prompt-tokens {max(1, target.max_context - 64)}",
            )  # fmt: skip
        ids.append(tokens)
        categories.append(prompt.category)
    if not ids:
        raise InputError("--max-prompt-tokens", max_prompt_tokens, "every prompt is longer", "raise it")
    return PromptSet(ids, categories, workload.name, workload.fingerprint, skipped)


def decoded_batches(
    pair: Pair, prompts: PromptSet, params: SamplingParams, limits: Limits, *, k: int = 0, batch_size: int = 1,
    verifier: str = LOSSLESS, first: int = 0,
) -> Iterator[dict[int, Transcript]]:  # fmt: skip
    """Outputs of every prompt by its place in the set, a batch at a time; as of `decode_prompts`."""
    batches = decode_batches(
        ModelTarget(pair.target), pair.drafter if k else None, verifier_of(verifier, params), prompts.ids, params,
        limits, k=k, batch_size=batch_size, text=pair.target.tokenizer.decode, first=first,
    )  # fmt: skip
    for indexes, decoded in batches:
        yield {
            index: dataclasses.replace(transcript, category=prompts.categories[index])
            for index, transcript in zip(indexes, decoded.transcripts, strict=True)
        }


def decode_prompts(
    pair: Pair, prompts: PromptSet, params: SamplingParams, limits: Limits, *, batch_size: int = 1,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, _total: items, **options: Any,
) -> list[Transcript]:  # fmt: skip
    """Outputs of every prompt, in order, by the drafter if ``k`` is above zero and by the target alone otherwise.

    ``first`` is the place of the first prompt where a set is decoded in pieces.
    """
    batches = decoded_batches(pair, prompts, params, limits, batch_size=batch_size, **options)
    by_prompt: dict[int, Transcript] = {}
    for batch in progress(batches, -(-len(prompts.ids) // batch_size)):
        by_prompt |= batch
    return [by_prompt[index] for index in range(len(prompts.ids))]


def decode_pieces(
    pair: Pair, prompts: PromptSet, params: SamplingParams, limits: Limits, *, size: int, **options: Any
) -> Iterator[list[Transcript]]:
    """As `decode_prompts`, ``size`` prompts at a time, each piece when it is asked for."""
    for first in range(0, len(prompts.ids), size):
        yield decode_prompts(pair, prompts.piece(first, size), params, limits, first=first, **options)


def limits_of(target: CausalModel, max_new_tokens: int, stop: Sequence[str] = ()) -> Limits:
    """The target's own end tokens, and what the user adds."""
    return Limits(max_new_tokens, target.end_ids, tuple(stop))
