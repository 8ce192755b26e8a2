"""From options to loaded models and prompts: what every command that runs a model begins with."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specaudit.cli.console import note
from specaudit.cli.options import check_least
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams

if TYPE_CHECKING:
    from specaudit.acceptance.pair import Pair, PromptSet
    from specaudit.acceptance.workloads import Workload


def sampling(**options: Any) -> SamplingParams:
    """Sampling parameters whose errors name the option and not the field."""
    try:
        return SamplingParams(**options)
    except InputError as error:
        name = "--" + error.argument.replace("_", "-")
        raise InputError(name, error.value, error.problem, error.remedy) from None


def load(target: str, draft: str | None, dtype: str, device: str, allow_pickle: bool, tree: str | None = None) -> Pair:
    """Target and drafter, checked against each other."""
    return load_each(target, [draft], dtype, device, allow_pickle, tree)[0]


def load_each(
    target: str, drafts: Sequence[str | None], dtype: str, device: str, allow_pickle: bool, tree: str | None = None
) -> list[Pair]:
    """One target with each of several drafters."""
    quieten()
    from specaudit.acceptance.pair import load_pair

    pairs: list[Pair] = []
    for draft in drafts:
        known = pairs[0].target if pairs else target
        pairs.append(load_pair(known, draft, dtype=dtype, device=device, allow_pickle=allow_pickle, tree=tree))
    # What is loaded stays: the garbage collector need not look through its million objects again and again.
    gc.collect()
    gc.freeze()
    return pairs


def workload(
    dataset: str, *, split: str | None = None, prompt_column: str | None = None, category_column: str | None = None,
    limit: int | None = None, seed: int = 0, max_prompt_tokens: int | None = None,
) -> Workload:  # fmt: skip
    """The prompts of a data set. Read before the models: a bad data set should cost no loading."""
    from specaudit.acceptance.workloads import load_workload

    check_least("--max-prompt-tokens", max_prompt_tokens, 1)
    return load_workload(
        dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed
    )


def prompts(
    pair: Pair, workload: Workload, *, chat: bool | None = None, max_prompt_tokens: int | None = None
) -> PromptSet:
    """A workload's prompts as the target's token ids; what is left out is said on standard error."""
    from specaudit.acceptance.pair import encode

    chosen = encode(workload, pair.target, chat=chat, max_prompt_tokens=max_prompt_tokens)
    for reason, count in chosen.skipped.items():
        note(f"left out {count} rows of {chosen.name}: {reason}")
    return chosen


def one_prompt(pair: Pair, text: str, chat: bool | None) -> PromptSet:
    """The text of ``--prompt`` as the target's token ids."""
    from specaudit.acceptance.pair import PromptSet
    from specaudit.acceptance.workloads import Prompt, prompt_ids

    ids = prompt_ids(Prompt((text,)), pair.target.tokenizer, chat=chat, argument="--prompt")
    if len(ids) >= pair.target.max_context:
        problem = f"{pair.target.name}'s context holds {pair.target.max_context}"
        raise InputError("--prompt", f"{text[:40]}... of {len(ids)} tokens", problem, "shorten it")
    return PromptSet([ids], [None], "--prompt", "", {})


def provenance(pair: Pair, prompts: PromptSet | None, params: SamplingParams | None, **facts: Any) -> dict[str, Any]:
    """Where a result comes from: models, data set, sampling, machine, command."""
    from specaudit.core.artifacts import provenance as where_from

    if prompts is not None:
        facts = {
            "dataset": prompts.name, "dataset_fingerprint": prompts.fingerprint, "prompts": len(prompts.ids),
            "skipped": prompts.skipped, **facts,
        }  # fmt: skip
    if params is not None:
        facts = {"sampling": dataclasses.asdict(params), "seed": params.seed, **facts}
    return where_from(**{**pair.facts, **facts})


def quieten() -> None:
    """Library chatter has no place between a command and its result; their errors still show."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
