"""EAGLE heads on disk: the published formats of EAGLE-1, -2 and -3, read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel
from specaudit.drafters.checkpoints import check_keys, read_config, read_weights
from specaudit.drafters.eagle_head import EagleHead, EagleShape

STEMS = ("model", "pytorch_model")
LEAST_LAYERS = 4  # below that the three hidden states of EAGLE-3 do not exist


def load_eagle(folder: Path, target: CausalModel) -> tuple[EagleHead, tuple[int, ...]]:
    """Reads a head, and which of the target's hidden states it was trained on.

    Raises
    ------
    InputError
        If a weight is missing, unknown or of another shape than the target and ``config.json`` ask for; it is named.
    """
    config = read_config(folder)
    weights = {_renamed(key): tensor for key, tensor in read_weights(folder, STEMS).items()}
    third = "norm.weight" in weights and "lm_head.weight" in weights
    t2d = weights.pop("t2d", None)
    shape = _shape(folder, config, weights, target, generation=3 if third else 1)
    head = EagleHead(shape)
    if third and "d2t" not in weights:
        weights["d2t"] = torch.zeros(shape.outputs, dtype=torch.long)
    shapes = {key: tuple(value.shape) for key, value in head.state_dict().items()}
    check_keys(folder, weights, shapes)
    head.load_state_dict(weights)
    _check_map(folder, head, t2d)
    return head.eval(), _hidden_layers(folder, config, target, shape.generation)


def save_eagle(head: EagleHead, folder: Path, facts: dict[str, Any]) -> None:
    """Writes EAGLE-1's format in bfloat16; ``facts`` go into ``config.json`` beside its own fields."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = head.shape.config
    fields = {
        "architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "bias": head.shape.fc_bias,
        "vocab_size": head.shape.vocabulary, "num_hidden_layers": head.shape.layers,
        "rope_theta": (config.rope_parameters or {}).get("rope_theta", 10000.0),
        **{name: getattr(config, name) for name in COPIED},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**fields, **facts}, indent=2) + "\n", encoding="utf-8")


COPIED = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "max_position_embeddings",
)  # fmt: skip


def eagle_config(fields: dict[str, Any], vocabulary: int) -> LlamaConfig:
    """The head's layers as a llama configuration; where no ``rope_theta`` is stated it is 10,000."""
    known = {name: fields[name] for name in (*COPIED, "hidden_act", "attention_bias") if fields.get(name) is not None}
    rope: dict[str, Any] = dict(fields.get("rope_parameters") or fields.get("rope_scaling") or {"rope_type": "default"})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", fields.get("rope_theta") or 10000.0)
    return LlamaConfig(vocab_size=vocabulary, rope_parameters=rope, **known)


def _renamed(key: str) -> str:
    return key.replace("midlayer.", "layers.0.", 1) if key.startswith("midlayer.") else key


def _shape(
    folder: Path, fields: dict[str, Any], weights: dict[str, Tensor], target: CausalModel, generation: int
) -> EagleShape:
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if not isinstance(fields.get(name), int):
            raise InputError("--draft", folder, f"config.json does not say {name}", "name the folder of an EAGLE head")
    layers = 1 + max((int(key.split(".")[1]) for key in weights if key.startswith("layers.")), default=-1)
    if layers == 0:
        raise InputError("--draft", folder, "holds no decoder layer", "name the folder of an EAGLE head")
    if generation == 1 and fields["hidden_size"] != target.hidden_size:
        problem = f"its hidden_size is {fields['hidden_size']}, the target's {target.hidden_size}"
        raise InputError("--draft", folder, problem, "use a head that was made for this target")
    outputs = weights["lm_head.weight"].shape[0] if generation == 3 else target.vocabulary
    # The published default is a bias; the weights know better than a configuration that was copied along.
    bias = "fc.bias" in weights if "bias" not in fields else bool(fields["bias"])
    return EagleShape(
        config=eagle_config(fields, target.vocabulary), generation=generation, target_hidden=target.hidden_size,
        vocabulary=target.vocabulary, outputs=outputs, layers=layers, fc_bias=bias,
        norm_before_residual=bool(fields.get("norm_before_residual", False)),
        own_embedding="embed_tokens.weight" in weights,
    )  # fmt: skip


def _hidden_layers(folder: Path, fields: dict[str, Any], target: CausalModel, generation: int) -> tuple[int, ...]:
    count = target.layer_count
    if generation == 1:
        return (count,)
    inner = fields.get("eagle_config") or {}
    named = fields.get("eagle_aux_hidden_state_layer_ids") or inner.get("eagle_aux_hidden_state_layer_ids")
    if named is None and count < LEAST_LAYERS:
        raise InputError("--draft", folder, f"the target has {count} layers", "name the layers in config.json")
    layers = tuple(named) if named is not None else (2, count // 2, count - 3)
    if len(layers) != 3 or not all(isinstance(layer, int) and 0 <= layer <= count for layer in layers):
        problem = f"eagle_aux_hidden_state_layer_ids is {list(layers)}, and the target has {count} layers"
        raise InputError("--draft", folder, problem, "name three of them")
    return layers


def _check_map(folder: Path, head: EagleHead, t2d: Tensor | None) -> None:
    """``d2t`` must lead into the target's vocabulary, and ``t2d`` mark the same tokens."""
    if head.d2t is None:
        return
    ids = head.ids(torch.arange(head.shape.outputs))
    if not bool(((ids >= 0) & (ids < head.shape.vocabulary)).all()) or len(ids.unique()) < len(ids):
        raise InputError("--draft", folder, "'d2t' does not name distinct ids of the target", "check the file")
    if t2d is not None and not torch.equal(t2d.bool().nonzero().flatten(), ids.sort().values):
        raise InputError("--draft", folder, "'t2d' marks other tokens than 'd2t' names", "check the file")
