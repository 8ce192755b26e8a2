"""Drafters, by the name that ``--draft`` takes. A new one is a file here and a line in ``PREFIXES`` or ``TREES``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, Drafter, LoadModel
from specaudit.drafters import eagle, early_exit, lookahead, medusa, model, prompt_lookup
from specaudit.drafters.checkpoints import head_folder

Factory = Callable[[str, CausalModel, LoadModel], Drafter]


class TreeFactory(Protocol):
    """Makes a drafter that proposes a chain, or with ``tree`` a tree."""

    def __call__(
        self, argument: str, target: CausalModel, load_model: LoadModel, tree: str | None = None
    ) -> Drafter: ...


PREFIXES: dict[str, Factory] = {
    "early-exit": early_exit.create,
    "lookahead": lookahead.create,
    "prompt-lookup": prompt_lookup.create,
}
TREES: dict[str, TreeFactory] = {
    "medusa": medusa.create,
    "eagle": eagle.create,
}


def means_model(name: str) -> bool:
    """Whether ``name`` is an independent model's; a head is looked for, so that a typing error costs no loading.

    Raises
    ------
    InputError
        If there is no such head.
    """
    prefix, _, argument = name.partition(":")
    if prefix in TREES:
        head_folder(argument, prefix)
    return prefix not in TREES and prefix not in PREFIXES


def create_drafter(name: str, target: CausalModel, load_model: LoadModel, tree: str | None = None) -> Drafter:
    """The drafter that ``name`` means: ``PREFIX[:ARGUMENT]`` from the registry, or else an independent model.

    Raises
    ------
    InputError
        If the argument is not one the drafter takes, the model cannot be loaded or does not fit the target, or a tree
        is asked of a drafter that proposes chains.
    """
    prefix, _, argument = name.partition(":")
    if prefix in TREES:
        return TREES[prefix](argument, target, load_model, tree)
    if tree is not None:
        raise InputError("--tree", tree, f"{name} has no tree to choose", f"use it with {' or '.join(TREES)}")
    if prefix in PREFIXES:
        return PREFIXES[prefix](argument, target, load_model)
    return model.create(name, target, load_model)
