"""EAGLE heads as vllm-project/speculators publishes them: their configuration and names in terms of the plain formats.

The layer's configuration is nested, EAGLE-1 has other names, and ``proposal_methods`` may declare an acceptance that is
not lossless. Every field is either used, known to change nothing when drafting, or an error that names it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel
from specaudit.drafters.checkpoints import read_config

KIND = "speculators_model_type"
GENERATIONS = {"eagle": 1, "eagle3": 3}
ALGORITHMS = {"eagle": ("eagle", "eagle2", "hass"), "eagle3": ("eagle3",)}
FLAGS = {
    "eagle": ("layernorms", "fusion_bias"),
    "eagle3": ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
}
FIELDS = {
    "eagle": ("transformer_layer_architecture",),
    "eagle3": ("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids"),
}
NAMES = {"fusion_fc.": "fc.", "transformer.": "layers.0.", "pre_lm_head_layernorm.": "norm."}  # of EAGLE-1
LAYER_FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "max_position_embeddings", "attention_bias", "rope_theta", "rope_scaling", "rope_parameters", "vocab_size",
    "num_hidden_layers",
)  # fmt: skip
LAYER_SETTINGS: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",), "hidden_act": ("silu",), "mlp_bias": (False,), "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,), "is_encoder_decoder": (False,), "chunk_size_feed_forward": (0,),
}  # fmt: skip
"""Fields of a layer that would change its arithmetic, with the values that are built."""
INERT = frozenset(
    (
        "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout",
        "attn_implementation", "auto_map", "bos_token_id", "dtype", "embed_requires_grad", "enable_sp_ulysses",
        "eos_token_id", "has_no_defaults_at_init", "id2label", "inference_type", "initializer_range", "label2id",
        "max_window_layers", "name_or_path", "output_attentions", "output_hidden_states", "pad_token_id",
        "pretraining_tp", "problem_type", "return_dict", "sliding_window", "speculators_version",
        "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
    )
)  # fmt: skip
"""Fields of training, saving and generation. A window is used where ``layer_types`` says so, and that is refused."""
LOOSENING = {"verifier_accept_k": (1, 1, math.inf), "accept_tolerance": (0, 0, math.inf), "accept_lenience": (1, 0, 1)}
"""Fields that loosen the acceptance: the value that leaves it lossless, and the least and largest that make sense."""
PROPOSAL_TYPES = ("greedy", "sampling", "static_tree", "dynamic_tree")
PROPOSAL_FIELDS = frozenset(
    ("proposal_type", "speculative_tokens", "initial_branching_factor", "branching_factor", "depth", "expansion_factor")
) | frozenset(LOOSENING)


class LossyDeclarationWarning(UserWarning):
    """A head's configuration asks whoever serves it to accept tokens that the target would not have drawn."""


def is_speculators(config: Mapping[str, Any]) -> bool:
    """Whether this ``config.json`` is of the speculators format."""
    return KIND in config


def generation_of(folder: Path, config: Mapping[str, Any]) -> int:
    """1 or 3.

    Raises
    ------
    InputError
        If the configuration is of another speculator.
    """
    kind = config[KIND]
    if not isinstance(kind, str) or kind not in GENERATIONS:
        problem = f"{KIND} is {kind!r}, and {' and '.join(map(repr, GENERATIONS))} can be read"
        raise InputError("--draft", folder, problem, "use an EAGLE head")
    return GENERATIONS[kind]


def names_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Beginnings of the published names that differ from the plain format's, with the plain ones."""
    return NAMES if config.get(KIND) == "eagle" else {}


def translated(folder: Path, config: Mapping[str, Any], target: CausalModel) -> dict[str, Any]:
    """The configuration of the same head in the plain format.

    Raises
    ------
    InputError
        If a field is missing, unknown, or asks for what is not built; it is named.
    """
    generation_of(folder, config)
    kind, layer = config[KIND], config.get("transformer_layer_config")
    _check_algorithm(folder, config)
    if not isinstance(layer, dict):
        raise _unusable(folder, "transformer_layer_config", layer, "must be the configuration of a llama layer")
    used = (KIND, "speculators_config", "transformer_layer_config", "model_type", *FLAGS[kind], *FIELDS[kind])
    _check_known(folder, "", config, used)
    _check_known(folder, "transformer_layer_config.", layer, (*LAYER_FIELDS, *LAYER_SETTINGS, "layer_types"))
    _check_layer(folder, layer, target)
    flags = {name: _flag(folder, config, name) for name in FLAGS[kind]}
    fields = {name: layer[name] for name in LAYER_FIELDS if layer.get(name) is not None}
    if kind == "eagle":
        if config.get("transformer_layer_architecture") not in (None, "auto", "LlamaDecoderLayer"):
            name = "transformer_layer_architecture"
            raise _unusable(folder, name, config[name], "only 'LlamaDecoderLayer' can be read")
        return fields | {"bias": flags["fusion_bias"], "layernorms": flags["layernorms"]}
    _check_eagle3(folder, config, target)
    kept = {name: config[name] for name in FIELDS[kind] if config.get(name) is not None}
    return fields | flags | kept


def lossy_declaration(folder: Path, config: Mapping[str, Any]) -> str | None:
    """What the proposal methods declare that makes the acceptance lossy, or None.

    A ``verifier_accept_k`` above one accepts what is among the target's k best tokens, an ``accept_tolerance`` above
    zero what is nearly as likely as the best one, and an ``accept_lenience`` below one loosens the ratio test of
    arXiv:2211.17192.

    Raises
    ------
    InputError
        If a method has a field that is unknown, since it might be such a rule, or a value that is none.
    """
    found: list[str] = []
    for index, method in enumerate(_proposal_methods(folder, config)):
        where = f"speculators_config.proposal_methods[{index}]"
        if not isinstance(method, dict):
            raise _unusable(folder, where, method, "must be a table of a proposal method's fields")
        _check_known(folder, f"{where}.", method, PROPOSAL_FIELDS)
        if method.get("proposal_type") not in (None, *PROPOSAL_TYPES):
            problem = f"is not one of {', '.join(PROPOSAL_TYPES)}"
            raise _unusable(folder, f"{where}.proposal_type", method["proposal_type"], problem)
        for name, (neutral, least, most) in LOOSENING.items():
            value = method.get(name)
            if value is None:
                continue
            # NaN lies in no range, and would otherwise pass for lossless.
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise _unusable(folder, f"{where}.{name}", value, f"must be a number from {least} to {most}")
            if value != neutral:
                found.append(f"{name} = {value} in proposal method {method.get('proposal_type', index)!r}")
    return "; ".join(found) or None


def surfaced_declaration(folder: Path) -> str | None:
    """What a head's ``config.json`` declares that makes the acceptance lossy, having warned of it; or None.

    Warns
    -----
    LossyDeclarationWarning
        If there is any.
    """
    config = read_config(folder)
    declared = lossy_declaration(folder, config) if is_speculators(config) else None
    if declared is not None:
        text = (
            f"{folder}/config.json declares {declared}: a server that honours this accepts tokens that the target "
            "would not have drawn, which changes the output; specaudit's own decoding does not use it, and is lossless"
        )
        warnings.warn(text, LossyDeclarationWarning, stacklevel=3)
    return declared


def _proposal_methods(folder: Path, config: Mapping[str, Any]) -> list[Any]:
    inner = config.get("speculators_config")
    if inner is None:
        return []
    if not isinstance(inner, dict):
        raise _unusable(folder, "speculators_config", inner, "must be a table")
    known = ("algorithm", "proposal_methods", "default_proposal_method", "verifier")
    _check_known(folder, "speculators_config.", inner, known)
    methods = inner.get("proposal_methods")
    if methods is not None and not isinstance(methods, list):
        raise _unusable(folder, "speculators_config.proposal_methods", methods, "must be a list")
    return methods or []


def _check_algorithm(folder: Path, config: Mapping[str, Any]) -> None:
    inner, kind = config.get("speculators_config"), config[KIND]
    algorithm = inner.get("algorithm") if isinstance(inner, dict) else None
    if algorithm is not None and algorithm not in ALGORITHMS[kind]:
        problem = f"does not go with the {KIND} {kind!r}"
        raise _unusable(folder, "speculators_config.algorithm", algorithm, problem)


def _check_known(folder: Path, where: str, fields: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in sorted(fields.keys() - INERT - set(known)):
        if fields[name] is not None:
            raise _unusable(folder, f"{where}{name}", fields[name], "is not a known field, and may change the head")


def _check_layer(folder: Path, layer: Mapping[str, Any], target: CausalModel) -> None:
    where = "transformer_layer_config."
    for name, built in LAYER_SETTINGS.items():
        if layer.get(name) is not None and layer[name] not in built:
            raise _unusable(folder, where + name, layer[name], f"only {built[0]!r} can be read")
    types = layer.get("layer_types") or []
    if any(kind != "full_attention" for kind in types):
        raise _unusable(folder, f"{where}layer_types", types, "only 'full_attention' can be read")
    for name in ("rope_parameters", "rope_scaling"):
        rope = layer.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise _unusable(folder, where + name, rope, "must be one table for all layers")
        if rope.get("partial_rotary_factor") not in (None, 1.0):
            factor = rope["partial_rotary_factor"]
            raise _unusable(folder, f"{where}{name}.partial_rotary_factor", factor, "only 1.0 can be read")
    vocabulary = layer.get("vocab_size")
    if vocabulary is not None and vocabulary != target.vocabulary:
        problem = f"and the target's vocabulary is {target.vocabulary}"
        raise _unusable(folder, f"{where}vocab_size", vocabulary, problem, "use a head that was made for this target")


def _check_eagle3(folder: Path, config: Mapping[str, Any], target: CausalModel) -> None:
    width = config.get("target_hidden_size")
    if width is not None and width != target.hidden_size:
        problem = f"and the target's is {target.hidden_size}"
        raise _unusable(folder, "target_hidden_size", width, problem, "use a head that was made for this target")
    name = "eagle_aux_hidden_state_layer_ids"
    ids = config.get(name)
    if ids is not None and (not isinstance(ids, list) or not ids):
        raise _unusable(folder, name, ids, "must be a list of layers, or absent for layers 2, L/2 and L - 3")
    if ids is not None and target.layer_count in ids:
        # The format means the state before the target's final norm there, and a target gives the one after it.
        problem = f"the state after the last of the target's {target.layer_count} layers cannot be read before its norm"
        raise _unusable(folder, name, ids, problem)


def _flag(folder: Path, config: Mapping[str, Any], name: str) -> bool:
    """An option of the format, off unless stated."""
    # vLLM takes an absent norm_before_residual for true. The format says false, and its own files always state it.
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise _unusable(folder, name, value, "must be true or false")
    return bool(value)


def _unusable(
    folder: Path, name: str, value: object, problem: str, remedy: str = "use a head that docs/drafters/eagle.md covers"
) -> InputError:
    return InputError("--draft", folder, f"{name} is {value!r} in config.json: {problem}", remedy)
