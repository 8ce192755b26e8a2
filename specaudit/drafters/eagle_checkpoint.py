"""EAGLE heads on disk: the published formats of EAGLE-1, -2 and -3, read and written.

The plain formats are read here, and what ``speculators_checkpoint`` has translated into them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from specaudit.drafters.speculators_checkpoint import generation_of, is_speculators, names_of, translated

STEMS = ("model", "pytorch_model")
LEAST_LAYERS = 4  # below that the three hidden states of EAGLE-3 do not exist


def load_eagle(folder: Path, target: CausalModel) -> tuple[EagleHead, tuple[int, ...]]:
    """Reads a head, and which of the target's hidden states it was trained on.

    Raises
    ------
    InputError
        If a weight is missing, unknown or of another shape than the target and ``config.json`` ask for, or a field of
        ``config.json`` asks for what is not built; it is named.
    """
    config = read_config(folder)
    names = names_of(config)
    weights = _all_renamed(folder, read_weights(folder, STEMS), names)
    if is_speculators(config):
        generation, fields = generation_of(folder, config), translated(folder, config, target)
        if generation == 3:  # EAGLE-1 has one layer, and its nested configuration may be the target's own
            _check_counts(folder, fields, weights, target)
        else:
            fields["own_head"] = "lm_head.weight" in weights
    else:
        generation, fields = 3 if "norm.weight" in weights and "lm_head.weight" in weights else 1, config
    t2d = weights.pop("t2d", None) if generation == 3 else None
    shape = _shape(folder, fields, weights, target, generation)
    head = EagleHead(shape)
    if generation == 3 and "d2t" not in weights:
        weights["d2t"] = torch.zeros(shape.outputs, dtype=torch.long)
    shapes = {_published(key, names): tuple(value.shape) for key, value in head.state_dict().items()}
    check_keys(folder, {_published(key, names): tensor for key, tensor in weights.items()}, shapes)
    head.load_state_dict(weights)
    _check_map(folder, head, t2d)
    return head.eval(), hidden_layers(folder, fields, target, generation)


def save_eagle(head: EagleHead, folder: Path, facts: dict[str, Any]) -> None:
    """Writes EAGLE-1's or EAGLE-3's format in bfloat16; ``facts`` go into ``config.json`` beside its own fields."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {"layers.0.": "midlayer."} if head.shape.generation == 3 else {}
    weights = {
        _renamed(key, names): (value if key == "d2t" else value.to(torch.bfloat16)).contiguous()
        for key, value in head.state_dict().items()
    }
    config = head.shape.config
    fields = {
        "architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "bias": head.shape.fc_bias,
        "vocab_size": head.shape.vocabulary, "num_hidden_layers": head.shape.layers,
        "rope_theta": (config.rope_parameters or {}).get("rope_theta", 10000.0),
        **{name: getattr(config, name) for name in COPIED},
    }  # fmt: skip
    if head.shape.generation == 3:
        fields |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": head.shape.outputs}
        ids = head.ids(torch.arange(head.shape.outputs, device=weights["d2t"].device))
        weights["t2d"] = torch.zeros(head.shape.vocabulary, dtype=torch.bool).index_fill_(0, ids.cpu(), True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
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


def _renamed(key: str, names: Mapping[str, str] | None = None) -> str:
    """The name inside ``EagleHead`` of a published one."""
    for published, own in {"midlayer.": "layers.0.", **(names or {})}.items():
        if key.startswith(published):
            return own + key.removeprefix(published)
    return key


def _published(key: str, names: Mapping[str, str]) -> str:
    """The published name of one inside ``EagleHead``, where they differ by ``names``."""
    return _renamed(key, {own: published for published, own in names.items()})


def _all_renamed(folder: Path, weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        name = _renamed(key, names)
        if name in found:
            raise InputError("--draft", folder, f"the weight {key!r} is there under two names", "check the file")
        found[name] = tensor
    return found


def _layer_count(weights: Mapping[str, Tensor]) -> int:
    return 1 + max((int(key.split(".")[1]) for key in weights if key.startswith("layers.")), default=-1)


def _check_counts(folder: Path, fields: Mapping[str, Any], weights: Mapping[str, Tensor], target: CausalModel) -> None:
    """What EAGLE-3 of the speculators format counts in ``config.json`` must be what the weights hold."""
    held = {"num_hidden_layers": _layer_count(weights)}
    if "lm_head.weight" in weights:
        outputs = held["draft_vocab_size"] = weights["lm_head.weight"].shape[0]
        if outputs != target.vocabulary and "d2t" not in weights:
            problem = f"the weight 'd2t' is missing, and the head proposes {outputs} of {target.vocabulary} tokens"
            raise InputError("--draft", folder, problem, "check the file")
    for name, count in held.items():
        if fields.get(name) is not None and fields[name] != count:
            problem = f"{name} is {fields[name]!r} in config.json, and the weights hold {count}"
            raise InputError("--draft", folder, problem, "check the file")


def _shape(
    folder: Path, fields: dict[str, Any], weights: dict[str, Tensor], target: CausalModel, generation: int
) -> EagleShape:
    own_embedding = "embed_tokens.weight" in weights
    _check_width(folder, fields, target, generation == 1 or not own_embedding)
    layers = _layer_count(weights)
    if layers == 0:
        raise InputError("--draft", folder, "holds no decoder layer", "name the folder of an EAGLE head")
    head = weights.get("lm_head.weight")
    outputs = head.shape[0] if generation == 3 and head is not None else target.vocabulary
    # The published default is a bias; the weights know better than a configuration that was copied along.
    bias = "fc.bias" in weights if "bias" not in fields else bool(fields["bias"])
    norm_before_fc, fc_norm = (_option(fields, name) for name in ("norm_before_fc", "fc_norm"))
    if norm_before_fc and fc_norm:
        problem = "norm_before_fc and fc_norm are both true in config.json, and one norm excludes the other"
        raise InputError("--draft", folder, problem, "check the file")
    return EagleShape(
        config=eagle_config(fields, target.vocabulary), generation=generation, target_hidden=target.hidden_size,
        vocabulary=target.vocabulary, outputs=outputs, layers=layers, fc_bias=bias,
        norm_before_residual=bool(fields.get("norm_before_residual", False)), own_embedding=own_embedding,
        states=len(_named_layers(fields) or range(3)), norm_before_fc=norm_before_fc, fc_norm=fc_norm,
        norm_output=_option(fields, "norm_output"), layernorms=bool(fields.get("layernorms", False)),
        own_head=bool(fields.get("own_head", False)),
    )  # fmt: skip


def _check_width(folder: Path, fields: Mapping[str, Any], target: CausalModel, same: bool) -> None:
    """The head's layer is described, and as wide as the target where it works on the target's own states."""
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if not isinstance(fields.get(name), int):
            raise InputError("--draft", folder, f"config.json does not say {name}", "name the folder of an EAGLE head")
    if same and fields["hidden_size"] != target.hidden_size:
        problem = f"its hidden_size is {fields['hidden_size']}, the target's {target.hidden_size}"
        raise InputError("--draft", folder, problem, "use a head that was made for this target")


def _option(fields: Mapping[str, Any], name: str) -> bool:
    """An option of EAGLE-3; some configurations keep it in an ``eagle_config`` of their own."""
    inner = fields.get("eagle_config") or {}
    return bool(inner.get(name, fields.get(name, False)))


def _named_layers(fields: Mapping[str, Any]) -> Sequence[int] | None:
    inner, name = fields.get("eagle_config") or {}, "eagle_aux_hidden_state_layer_ids"
    return fields.get(name) or inner.get(name)


def hidden_layers(folder: Path, fields: dict[str, Any], target: CausalModel, generation: int) -> tuple[int, ...]:
    """Which of the target's hidden states a head reads: the last one, or where nothing is said EAGLE-3's three.

    Raises
    ------
    InputError
        If they are not states of the target, or it has too few layers for three.
    """
    count = target.layer_count
    if generation == 1:
        return (count,)
    named = _named_layers(fields)
    if named is None and count < LEAST_LAYERS:
        raise InputError("--draft", folder, f"the target has {count} layers", "name the layers in config.json")
    layers = tuple(named) if named is not None else (2, count // 2, count - 3)
    known = all(isinstance(layer, int) and 0 <= layer <= count for layer in layers)
    if not known or len(set(layers)) < len(layers):
        problem = f"eagle_aux_hidden_state_layer_ids is {list(layers)}, and the target has {count} layers"
        raise InputError("--draft", folder, problem, "name each layer once")
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
