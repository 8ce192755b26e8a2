"""Drafters, by the name that ``--draft`` takes. A new one is a file here and a line in ``PREFIXES``."""

from __future__ import annotations

from collections.abc import Callable

from specaudit.core.protocols import CausalModel, Drafter, LoadModel
from specaudit.drafters import lookahead, model, prompt_lookup

Factory = Callable[[str, CausalModel, LoadModel], Drafter]

PREFIXES: dict[str, Factory] = {
    "lookahead": lookahead.create,
    "prompt-lookup": prompt_lookup.create,
}


def create_drafter(name: str, target: CausalModel, load_model: LoadModel) -> Drafter:
    """The drafter that ``name`` means: ``PREFIX[:ARGUMENT]`` from the registry, or else an independent model.

    Raises
    ------
    InputError
        If the argument is not one the drafter takes, or the model cannot be loaded or does not fit the target.
    """
    prefix, _, argument = name.partition(":")
    if prefix in PREFIXES:
        return PREFIXES[prefix](argument, target, load_model)
    return model.create(name, target, load_model)
