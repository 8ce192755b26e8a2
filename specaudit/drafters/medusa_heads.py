"""Medusa heads (Cai et al. arXiv:2401.10774): from one hidden state, the tokens one, two, three further on.

Reads the original format (``{i}.{j}.linear.weight``, ``{i}.{layers}.weight``) and vLLM's
(``blocks.{i}.layers.{j}.weight``, ``lm_heads.{i}.weight``, ``token_map``), and writes vLLM's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import silu

from specaudit.core.errors import InputError
from specaudit.drafters.checkpoints import check_keys, read_config, read_weights

STEMS = ("medusa_lm_head", "model", "pytorch_model")
PREFIXES = ("medusa_heads.", "medusa_head.")
ORIGINAL_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
ORIGINAL_HEAD = re.compile(r"(\d+)\.(\d+)\.weight")


class MedusaHeads(nn.Module):
    """``heads`` times a few residual blocks ``x + SiLU(W x + b)`` and an output matrix (section 2.1).

    Parameters
    ----------
    hidden, vocabulary : int
        Width of the target's last hidden state, and of its logits.
    heads, layers : int
        How many heads, and residual blocks in each.
    bias : bool
        Whether the blocks have one.
    token_map : Int[Tensor, "reduced"], optional
        The target's ids that the heads can propose, where they have a reduced vocabulary.
    """

    token_map: Tensor | None

    def __init__(
        self, hidden: int, vocabulary: int, heads: int, layers: int, *, bias: bool = True,
        token_map: Int[Tensor, " reduced"] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden, self.vocabulary, self.layers, self.bias = hidden, vocabulary, layers, bias
        outputs = vocabulary if token_map is None else len(token_map)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(hidden, hidden, bias=bias) for _ in range(layers)) for _ in range(heads)
        )
        self.lm_heads = nn.ModuleList(nn.Linear(hidden, outputs, bias=False) for _ in range(heads))
        self.register_buffer("token_map", token_map)
        for block in self.blocks.modules():  # a new head starts as the identity of the hidden state
            if isinstance(block, nn.Linear):
                nn.init.zeros_(block.weight)
                if block.bias is not None:
                    nn.init.zeros_(block.bias)

    @property
    def heads(self) -> int:
        return len(self.lm_heads)

    def forward(self, hidden: Float[Tensor, "*positions hidden"]) -> Float[Tensor, "*positions heads reduced"]:
        """Logits of every head, over the heads' own vocabulary."""
        out = []
        for blocks, head in zip(self.blocks, self.lm_heads, strict=True):
            state = hidden
            for block in blocks:  # type: ignore[attr-defined]
                state = state + silu(block(state))
            out.append(head(state))
        return torch.stack(out, -2)

    def ids(self, reduced: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The target's ids of the heads' own."""
        return reduced if self.token_map is None else self.token_map[reduced]


def load_medusa(folder: Path, hidden: int, vocabulary: int) -> tuple[MedusaHeads, dict[str, Any]]:
    """Reads heads in either published format, and their ``config.json``.

    Published configurations state wrong numbers of heads, so heads and blocks are counted from the weights.

    Raises
    ------
    InputError
        If a weight is missing, unknown or of another shape than the target asks for; it is named.
    """
    config = read_config(folder)
    weights = {_renamed(key, folder): tensor for key, tensor in read_weights(folder, STEMS).items()}
    token_map = weights.pop("token_map", None)
    heads = 1 + max((int(key.split(".")[1]) for key in weights if key.startswith("lm_heads.")), default=-1)
    if heads == 0:
        raise InputError("--draft", folder, "holds no Medusa head", "name a folder of Medusa heads")
    layers = 1 + max((int(key.split(".")[2]) for key in weights if key.startswith("blocks.")), default=-1)
    bias = any(key.startswith("blocks.") and key.endswith(".bias") for key in weights)
    model = MedusaHeads(hidden, vocabulary, heads, layers, bias=bias, token_map=token_map)
    own = {key: value for key, value in model.state_dict().items() if key != "token_map"}
    check_keys(folder, weights, {key: tuple(value.shape) for key, value in own.items()})
    if token_map is not None and not bool(((token_map >= 0) & (token_map < vocabulary)).all()):
        problem = f"'token_map' names ids beyond the target's {vocabulary}"
        raise InputError("--draft", folder, problem, "use heads that were made for this target")
    model.load_state_dict(weights, strict=False)
    return model.eval(), config


def _renamed(key: str, folder: Path) -> str:
    """The name of a weight inside ``MedusaHeads``, from either published format."""
    for prefix in PREFIXES:
        key = key.removeprefix(prefix)
    if block := ORIGINAL_BLOCK.fullmatch(key):
        return f"blocks.{block[1]}.{block[2]}.{block[3]}"
    if head := ORIGINAL_HEAD.fullmatch(key):
        return f"lm_heads.{head[1]}.weight"
    return re.sub(r"^blocks\.(\d+)\.layers\.", r"blocks.\1.", key)


def save_medusa(model: MedusaHeads, folder: Path, facts: dict[str, Any]) -> None:
    """Writes vLLM's format in bfloat16; ``facts`` go into ``config.json`` beside its own fields."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        re.sub(r"^blocks\.(\d+)\.", r"blocks.\1.layers.", key): value.to(torch.bfloat16).contiguous()
        for key, value in model.state_dict().items()
        if key != "token_map"
    }
    if model.token_map is not None:
        weights["token_map"] = model.token_map.long().contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": model.hidden,
        "vocab_size": model.vocabulary, "num_heads": model.heads, "num_hidden_layers": model.layers,
        "truncated_vocab_size": weights["lm_heads.0.weight"].shape[0], "original_lm_head": False,
        "medusa_fc_bias": model.bias, **facts,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def searched_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> list[tuple[int, ...]]:
    """The tree of ``nodes`` nodes with the most expected accepted tokens, as ranks along each path (section 2.3.3).

    Parameters
    ----------
    accuracies : sequence of sequence of float
        ``accuracies[i][r]``: how often head i's token of rank r is the target's.

    Notes
    -----
    A node is worth the product of the accuracies along its path, taken as independent; so the best tree is made by
    adding the most valuable node whose parent is there, again and again.
    """
    tree: list[tuple[int, ...]] = []
    frontier: dict[tuple[int, ...], float] = {(0,): accuracies[0][0]}
    values: dict[tuple[int, ...], float] = {(): 1.0}
    while frontier and len(tree) < nodes:
        path = max(frontier, key=lambda node: (frontier[node], [-rank for rank in node]))
        values[path] = frontier.pop(path)
        tree.append(path)
        depth, rank = len(path), path[-1]
        if rank + 1 < len(accuracies[depth - 1]):
            frontier[(*path[:-1], rank + 1)] = values[path[:-1]] * accuracies[depth - 1][rank + 1]
        if depth < len(accuracies):
            frontier[(*path, 0)] = values[path] * accuracies[depth][0]
    return sorted(tree, key=lambda node: (len(node), node))
