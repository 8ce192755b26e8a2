"""A transformers causal language model behind the small interface that decoding and scoring need."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import linear

from specaudit.core.errors import InputError
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import Tree
from specaudit.core.types import SamplingParams
from specaudit.models.kv_cache import RowCache
from specaudit.models.layers import LayerSplit
from specaudit.models.scoring import conditionals, hidden_states, output_logits

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


class HuggingFaceModel:
    """Implements ``core.protocols.CausalModel`` for any decoder-only attention model of transformers.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, on its device.
    tokenizer : transformers.PreTrainedTokenizerBase
    name : str
        What the user called it.
    content : str
        Hash of the weights, for provenance.

    Raises
    ------
    InputError
        If a layer keeps a state that cannot be rewound (recurrent or convolutional layers).
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, content: str) -> None:
        self.model, self.tokenizer, self.name, self.content = model, tokenizer, name, content
        self.config = model.config.get_text_config(decoder=True)
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.max_context = int(getattr(self.config, "max_position_embeddings", None) or 1 << 20)
        self.end_ids = _end_ids(model, tokenizer)
        self.layer_types = self._layer_types()
        parameters = inspect.signature(model.forward).parameters
        # transformers renamed past_key_values to cache in the 5.x series; both are supported.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters

    def _layer_types(self) -> list[str]:
        types = list(getattr(self.config, "layer_types", None) or ["full_attention"] * self.config.num_hidden_layers)
        unknown = sorted(set(types) - ATTENTION_LAYERS)
        if unknown:
            raise InputError(
                "model", self.name, f"its layers of type {', '.join(unknown)} keep a state that cannot be rewound",
                "use a model whose layers are all attention",
            )  # fmt: skip
        if "local" in (getattr(self.config, "attention_layers", None) or ()):  # GPT-Neo
            raise InputError(
                "model", self.name, "its local attention layers count positions from the end of the batch",
                "use a model whose attention takes positions and a mask, such as a llama",
            )  # fmt: skip
        return types

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype_name(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def layer_count(self) -> int:
        return len(self.layer_types)

    def split(self, exit_layer: int) -> LayerSplit:
        return LayerSplit(self, exit_layer)

    def masks(self, rows: RowCache) -> Any:
        """One 4D mask, or one for each kind of layer where the model mixes them."""
        window = getattr(self.config, "sliding_window", None)
        kinds = set(self.layer_types)
        if kinds == {"full_attention"}:
            # Some configurations carry the window without naming the layers; those models apply it to every layer.
            named = getattr(self.config, "layer_types", None)
            return rows.causal_mask(self.model.dtype, None if named else window)
        by_kind = {
            kind: rows.causal_mask(self.model.dtype, window if kind == "sliding_attention" else None) for kind in kinds
        }
        return by_kind if len(kinds) > 1 else by_kind.popitem()[1]

    def open_rows(self, batch: int, capacity: int, hidden_layers: Sequence[int] = ()) -> ModelRows:
        return ModelRows(self, batch, capacity, hidden_layers)

    def open_cache(self, layers: int, batch: int, capacity: int) -> RowCache:
        return RowCache(layers, batch, capacity, self.device)

    @torch.inference_mode()
    def forward(
        self, tokens: Int[Tensor, "batch width"], rows: RowCache, keep: int, hidden_layers: Sequence[int] = ()
    ) -> tuple[Float[Tensor, "batch kept v"], Float[Tensor, "batch width features"] | None]:
        """Logits of the last ``keep`` tokens (all if zero), and the hidden states of ``hidden_layers`` side by side.

        Layer i stands for what enters decoder layer i; the number of layers stands for the final norm's output.
        """
        arguments: dict[str, Any] = {self._cache_argument: rows}
        if self._keeps_logits:
            arguments["logits_to_keep"] = keep
        if hidden_layers:
            arguments["output_hidden_states"] = True
        positions = rows.positions()
        if rows.end > self.max_context:  # padding of a row whose neighbours are longer
            positions = positions.clamp(max=self.max_context - 1)
        output = self.model(
            input_ids=tokens, position_ids=positions.expand(len(tokens), -1), attention_mask=self.masks(rows),
            use_cache=True, **arguments,
        )  # fmt: skip
        hidden = torch.cat([output.hidden_states[layer] for layer in hidden_layers], -1) if hidden_layers else None
        return output.logits[:, -keep:] if keep else output.logits, hidden

    @torch.inference_mode()
    def score_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], first: int = 0
    ) -> Float[Tensor, "batch kept vocab"]:
        """One ordinary forward pass, without the row cache."""
        kept = ids.shape[1] - first
        arguments = {"logits_to_keep": kept} if self._keeps_logits else {}
        return self._whole(ids, lengths, **arguments).logits[:, -kept:]

    def score_hidden(
        self, ids: Int[Tensor, "batch length"], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "batch length features"], Float[Tensor, "batch length vocab"]]:
        """Hidden states, the named layers side by side, and all logits of one pass over rows of one length."""
        output = self._whole(ids, [ids.shape[1]] * len(ids), output_hidden_states=True)
        return torch.cat([output.hidden_states[layer] for layer in layers], -1), output.logits

    @torch.inference_mode()
    def hidden_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], layers: Sequence[int]
    ) -> Float[Tensor, "batch length features"]:
        """Hidden states of one ordinary pass, the named layers side by side."""
        arguments = {"logits_to_keep": 1} if self._keeps_logits else {}
        states = self._whole(ids, lengths, output_hidden_states=True, **arguments).hidden_states
        return torch.cat([states[layer] for layer in layers], -1)

    def _whole(self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], **arguments: Any) -> Any:
        mask = torch.arange(ids.shape[1]) < torch.tensor(lengths).unsqueeze(-1)
        padded = bool((~mask).any())
        return self.model(
            input_ids=ids.to(self.device), attention_mask=mask.long().to(self.device) if padded else None,
            use_cache=False, **arguments,
        )  # fmt: skip

    def conditionals(
        self, sequences: Sequence[Sequence_], params: SamplingParams, vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        return conditionals(self, sequences, params, vocabulary)

    def output_logits(
        self, sequences: Sequence[Sequence_], vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        return output_logits(self, sequences, vocabulary)

    def hidden_states(
        self, sequences: Sequence[Sequence_], layers: Sequence[int]
    ) -> Iterator[tuple[int, Float[Tensor, "tokens features"]]]:
        return hidden_states(self, sequences, layers)

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape hidden"]:
        return self.model.get_input_embeddings()(ids)

    def head(
        self, hidden: Float[Tensor, "*shape hidden"], ids: Int[Tensor, " some"] | None = None
    ) -> Float[Tensor, "*shape vocab"]:
        """Logits of all tokens or of ``ids``, scaled and capped as the model itself does (Cohere, Granite, Gemma)."""
        output, config = self.model.get_output_embeddings(), self.config
        bias = None if output.bias is None or ids is None else output.bias[ids]
        logits = output(hidden) if ids is None else linear(hidden, output.weight[ids], bias)
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        logits = logits if scale == 1.0 else logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits


class ModelRows:
    """Implements ``core.protocols.CachedRows`` on a RowCache, on which a part of ``model`` can run as well."""

    def __init__(self, model: HuggingFaceModel, batch: int, capacity: int, hidden_layers: Sequence[int] = ()) -> None:
        self.model = model
        self.cache = RowCache(model.layer_count, batch, capacity, model.device)
        self.hidden_layers = tuple(hidden_layers)
        self.hidden: Float[Tensor, "batch width features"] | None = None

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        width = max(len(prompt) for prompt in prompts)
        if width == 0:
            return
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(list(prompt), dtype=torch.long)
        self.cache.prepare(width)
        _, self.hidden = self.model.forward(ids.to(self.model.device), self.cache, 1, self.hidden_layers)
        self.commit([len(prompt) for prompt in prompts])

    def forward(self, tokens: Int[Tensor, "batch width"], tree: Tree | None = None) -> Float[Tensor, "batch width v"]:
        self.cache.prepare(tokens.shape[1], tree)
        logits, self.hidden = self.model.forward(tokens, self.cache, 0, self.hidden_layers)
        return logits

    def commit(self, counts: Sequence[int]) -> None:
        self.cache.commit(counts)

    @torch.inference_mode()
    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        self.cache.commit_paths(paths)

    def rewind(self, lengths: Sequence[int]) -> None:
        self.cache.rewind(lengths)

    def keep(self, rows: list[int]) -> None:
        self.cache.keep(rows)


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends an output: the generation settings' list, or else the configuration's or tokenizer's."""
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
