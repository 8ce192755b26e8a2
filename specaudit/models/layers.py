"""A model cut after one of its decoder layers: the layers below with the model's own norm and head, and the rest.

Both parts are shallow views that share the model's weights, and both write to the same cache rows. Nothing here knows
an architecture: a decoder is a module that runs the modules of one list in order.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from specaudit.core.protocols import CachedRows
from specaudit.models.kv_cache import RowCache

if TYPE_CHECKING:
    from specaudit.core.types import Continuation
    from specaudit.models.causal import HuggingFaceModel, ModelRows

PROBE_TOKENS = 4


def find_stack(model: HuggingFaceModel) -> str:
    """The path of the list that holds a model's decoder layers.

    Raises
    ------
    LookupError
        If there is no such list, or more than one, or a view of it cannot run; the message says which.
    """
    decoder = model.model.get_decoder()
    start = next(name for name, module in model.model.named_modules() if module is decoder)
    found = [path for path, modules in _lists(decoder, start) if len(modules) == model.layer_count]
    if len(found) != 1:
        raise LookupError(
            f"the decoder of {model.name} has {len(found)} lists of {model.layer_count} modules, and must have one: "
            "that of its layers"
        )
    parts = found[0].split(".")
    if any("forward" in vars(model.model.get_submodule(".".join(parts[:depth]))) for depth in range(len(parts))):
        # A view would call the wrapper, which runs the whole model that it was made for.
        raise LookupError(f"a forward of {model.name} is wrapped, as accelerate does to spread a model over devices")
    return found[0]


def _lists(module: nn.Module, path: str) -> Iterator[tuple[str, nn.ModuleList]]:
    """The module lists below ``module`` that stand in no other list (a layer's experts are such)."""
    for name, child in module.named_children():
        here = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList):
            yield here, child
        else:
            yield from _lists(child, here)


class LayerSplit:
    """Implements ``core.protocols.SplitModel`` with the first ``exit_layer`` decoder layers, and those above them.

    Parameters
    ----------
    model : HuggingFaceModel
    exit_layer : int
        At least 1, and below the number of layers.

    Raises
    ------
    LookupError
        See ``find_stack``.

    Attributes
    ----------
    early : HuggingFaceModel
        The lower layers under the model's final norm and head: a causal model of its own, on ``exit_layer`` layers.
    continues : bool
        Whether the upper part gives the logits of a whole pass. A layer may need more from below than its input: keys
        of another layer, or a residual that is carried beside the hidden state.
    """

    def __init__(self, model: HuggingFaceModel, exit_layer: int) -> None:
        self.model, path = model, find_stack(model)
        layers = list(self.model.model.get_submodule(path))
        head = self.model.model.get_output_embeddings()
        head_path = next(name for name, module in self.model.model.named_modules() if module is head)
        self._exit, self._entry = _Exit(layers[exit_layer - 1]), _Entry(layers[exit_layer - 1])
        below = nn.ModuleList([*layers[: exit_layer - 1], self._exit])
        # As many modules as there were: a decoder may look up each one's mask by its place.
        above = nn.ModuleList([self._entry] * exit_layer + layers[exit_layer:])
        self.early = _part(self.model, {path: below})
        self._headless = _part(self.model, {path: below, head_path: nn.Identity()})
        self._upper = _part(self.model, {path: above})
        self.continues = not getattr(self.model.config, "num_kv_shared_layers", 0) and self._agrees()

    def open_pass(self, rows: CachedRows) -> LowerPass:
        return LowerPass(self, cast("ModelRows", rows))

    def lower(
        self, tokens: Int[Tensor, "batch width"], cache: RowCache
    ) -> tuple[Float[Tensor, "batch vocab"], Float[Tensor, "batch width features"]]:
        """The early exit's logits after the last token, and the hidden states that enter the upper part."""
        logits, _ = self.early.forward(tokens, cache, 1)
        return logits[:, -1], self._exit.states()

    def states(self, tokens: Int[Tensor, "batch width"], cache: RowCache) -> Float[Tensor, "batch width features"]:
        """The hidden states that enter the upper part, without the cost of the head."""
        self._headless.forward(tokens, cache, 1)
        return self._exit.states()

    def upper(
        self, tokens: Int[Tensor, "batch width"], states: Float[Tensor, "batch width features"], cache: RowCache
    ) -> Float[Tensor, "batch width vocab"]:
        """The whole model's logits, from the hidden states that the lower part gave for ``tokens``."""
        self._entry.output = self._exit.like_the_layers(states)
        logits, _ = self._upper.forward(tokens, cache, 0)
        self._entry.output = None
        return logits

    def _agrees(self) -> bool:
        """One short pass both ways. The shapes are the same, so any difference is not one of rounding."""
        tokens = torch.arange(min(PROBE_TOKENS, self.model.max_context)).unsqueeze(0) % self.model.vocabulary
        tokens = tokens.to(self.model.device)
        cache = RowCache(self.model.layer_count, 1, tokens.shape[1], self.model.device)
        cache.prepare(tokens.shape[1])
        whole, _ = self.model.forward(tokens, cache, 0)
        states = self.states(tokens, cache)
        if states.shape[:-1] != tokens.shape:
            return False
        difference = (self.upper(tokens, states, cache) - whole).abs().max()
        return bool(difference <= 16 * torch.finfo(whole.dtype).eps * whole.abs().max())


class LowerPass:
    """Implements ``core.protocols.EarlyPass``.

    Parameters
    ----------
    split : LayerSplit
    rows : ModelRows
        Of the model that was split.
    """

    def __init__(self, split: LayerSplit, rows: ModelRows) -> None:
        assert rows.model is split.model, "the rows of another model"
        self._split, self._rows = split, rows
        self._lengths = list(rows.lengths)
        self._states: list[Float[Tensor, "batch 1 features"]] = []

    def step(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab"]:
        self._rows.cache.prepare(1)
        logits, states = self._split.lower(tokens.unsqueeze(1), self._rows.cache)
        self._rows.commit([1] * len(tokens))
        self._states.append(states)
        return logits

    def close(self) -> Continuation | None:
        """A continuation, or None where only a whole pass will do.

        A whole pass writes the lower layers' keys once more, in the same place, so it is right as well. It is needed
        where the upper part does not continue the lower, and where the rows are to keep hidden states, since those of
        the lower layers are gone.
        """
        self._rows.rewind(self._lengths)
        return self._continue if self._split.continues and not self._rows.hidden_layers else None

    def _continue(self, tokens: Int[Tensor, "batch width"]) -> Float[Tensor, "batch width vocab"]:
        batch, width = tokens.shape
        cache, known = self._rows.cache, len(self._states)
        states = self._states
        if known < width:  # the last drafted token, which nothing was drafted after
            cache.commit([known] * batch)
            cache.prepare(width - known)
            states = [*states, self._split.states(tokens[:, known:], cache)]
            cache.rewind(self._lengths)
        cache.prepare(width)
        return self._split.upper(tokens, torch.cat(states, 1), cache)


def _part(model: HuggingFaceModel, replacements: dict[str, nn.Module]) -> HuggingFaceModel:
    part = copy.copy(model)
    for path, module in replacements.items():
        part.model = _view(part.model, path.split("."), module)
    return part


def _view(module: nn.Module, path: list[str], replacement: nn.Module) -> Any:
    """A copy of the modules along ``path`` alone; weights, and every other module, are the same objects."""
    view = copy.copy(module)
    view._modules = dict(module._modules)
    child = module._modules[path[0]]
    assert child is not None
    view._modules[path[0]] = replacement if len(path) == 1 else _view(child, path[1:], replacement)
    return view


class _Boundary(nn.Module):
    """Has the attributes of the layer that it stands for, which a decoder may ask for."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


class _Exit(_Boundary):
    """The highest layer of the lower part, whose output it keeps until it is fetched."""

    output: Any = None
    _others: tuple[Any, ...] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.output = self.layer(*args, **kwargs)
        return self.output

    def states(self) -> Tensor:
        # Some architectures' layers return a tuple. Of a bare tensor their decoder would take the first row.
        output, self.output, self._others = self.output, None, None
        if isinstance(output, tuple):
            output, self._others = output[0], output[1:]
        return output

    def like_the_layers(self, states: Tensor) -> Any:
        return states if self._others is None else (states, *self._others)


class _Entry(_Boundary):
    """Stands for every layer of the lower part: whatever comes in, what the last of them gave goes out."""

    output: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output
