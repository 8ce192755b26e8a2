"""EAGLE heads (Li et al. arXiv:2401.15077, 2406.16858; EAGLE-3 arXiv:2503.01840): a small decoder of hidden states.

A pair is a token and the feature of the position before it. From the pairs so far the head predicts the feature of the
pair's own position, whose logits are the next token's; the prediction is then the feature of the next pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from specaudit.core.protocols import LayerCache


@dataclass(frozen=True)
class EagleShape:
    """What distinguishes the published heads.

    Attributes
    ----------
    generation : {1, 3}
        EAGLE-1 and -2 merge token and feature by ``fc`` before a plain layer without its first norm, and use the
        target's head. EAGLE-3 reads three of the target's hidden states, lets attention see token and feature side by
        side, and has a norm and a head of its own.
    target_hidden : int
        Width of the target's hidden states.
    outputs : int
        Tokens that the head can propose, of the target's ``vocabulary``.
    states : int
        How many of the target's hidden states EAGLE-3 reads.
    norm_before_fc, fc_norm : bool
        EAGLE-3: a norm over those states side by side before they are merged, or a norm of each; not both.
    norm_output : bool
        EAGLE-3: what is fed back is the normed state, the one that the output head reads (EAGLE-3.1).
    layernorms : bool
        EAGLE-1: a norm of the token's embedding, one before the first attention and one before the output head.
    own_head : bool
        EAGLE-1: an output head of its own instead of the target's.
    """

    config: LlamaConfig
    generation: int
    target_hidden: int
    vocabulary: int
    outputs: int
    layers: int = 1
    fc_bias: bool = True
    norm_before_residual: bool = False
    own_embedding: bool = False
    states: int = 3
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    layernorms: bool = False
    own_head: bool = False


class EagleAttention(nn.Module):
    """Grouped-query attention with rotary positions; its input may be wider than its output."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
        bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = nn.Linear(inputs, self.heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(inputs, self.groups * self.dim, bias=bias)
        self.v_proj = nn.Linear(inputs, self.groups * self.dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=bias)

    def project(
        self, states: Float[Tensor, "batch width inputs"], rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[batch, heads, width, dim]``, keys and values ``[batch, groups, width, dim]``."""
        shape = (*states.shape[:2], -1, self.dim)
        query, key, value = (p(states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        query, key = apply_rotary_pos_emb(query, key, *rotary)
        return query, key, value

    def merge(self, attended: Float[Tensor, "batch heads width dim"]) -> Float[Tensor, "batch width hidden"]:
        return self.o_proj(attended.transpose(1, 2).flatten(2))

    def widen(self, states: Float[Tensor, "batch groups width dim"]) -> Float[Tensor, "batch heads width dim"]:
        return states.repeat_interleave(self.heads // self.groups, dim=1)


class EagleLayer(nn.Module):
    """One decoder layer; ``first`` and ``generation`` say which norms it has and what its attention reads."""

    def __init__(self, shape: EagleShape, first: bool) -> None:
        super().__init__()
        config, self.beside = shape.config, first and shape.generation == 3
        hidden, epsilon = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = shape.norm_before_residual
        self.self_attn = EagleAttention(config, 2 * hidden if self.beside else hidden)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, config.intermediate_size, bias=False),
                "up_proj": nn.Linear(hidden, config.intermediate_size, bias=False),
                "down_proj": nn.Linear(config.intermediate_size, hidden, bias=False),
            }
        )
        if self.beside:
            self.hidden_norm = LlamaRMSNorm(hidden, epsilon)
        if self.beside or shape.layernorms or not first:
            self.input_layernorm = LlamaRMSNorm(hidden, epsilon)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, epsilon)

    def enter(self, token: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, and the residual."""
        if self.beside:
            assert token is not None
            normed = self.hidden_norm(state)
            inputs = torch.cat([self.input_layernorm(token), normed], -1)
            return inputs, normed if self.norm_before_residual else state
        return (self.input_layernorm(state) if hasattr(self, "input_layernorm") else state), state

    def leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        state = residual + attended
        inner = self.post_attention_layernorm(state)
        gate, up, down = (self.mlp[name] for name in ("gate_proj", "up_proj", "down_proj"))
        return state + down(silu(gate(inner)) * up(inner))


class EagleHead(nn.Module):
    """The draft network. Tokens come embedded; where ``lm_head`` is None the caller applies the target's own."""

    d2t: Tensor | None
    lm_head: nn.Linear | None

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.config.hidden_size
        self.layers = nn.ModuleList(EagleLayer(shape, first=i == 0) for i in range(shape.layers))
        epsilon = shape.config.rms_norm_eps
        if shape.generation == 3:
            width = shape.states * shape.target_hidden
            self.input_norm = _norm(width, epsilon, shape.norm_before_fc)
            self.fc_norm = nn.ModuleList(
                _norm(shape.target_hidden, epsilon, shape.fc_norm) for _ in range(shape.states)
            )
            self.fc = nn.Linear(width, hidden, bias=False)
            self.register_buffer("d2t", torch.zeros(shape.outputs, dtype=torch.long))
        else:
            self.embedding_layernorm = _norm(hidden, epsilon, shape.layernorms)
            self.fc = nn.Linear(2 * hidden, hidden, bias=shape.fc_bias)
            self.register_buffer("d2t", None)
        third = shape.generation == 3
        self.norm = _norm(hidden, epsilon, third or shape.layernorms)
        self.lm_head = nn.Linear(hidden, shape.outputs, bias=False) if third or shape.own_head else None
        self.embed_tokens = nn.Embedding(shape.vocabulary, hidden) if shape.own_embedding else None
        self.rotary = LlamaRotaryEmbedding(shape.config)

    def feature(self, target_states: Float[Tensor, "*shape states"]) -> Float[Tensor, "*shape hidden"]:
        """The feature of a position from the target's hidden states, side by side: EAGLE-3 merges them."""
        if self.shape.generation == 1:
            return target_states
        states = self.input_norm(target_states)
        if self.shape.fc_norm:
            parts = states.chunk(self.shape.states, -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(states)

    def _merged(self, token: Tensor, feature: Tensor) -> Tensor:
        if self.shape.generation == 3:
            return feature
        return self.fc(torch.cat([self.embedding_layernorm(token), feature], -1))

    def _predicted(self, state: Tensor) -> Tensor:
        """The feature that is fed back and read out, from what left the last layer."""
        return self.norm(state) if self.shape.norm_output else state

    def forward(
        self, token: Float[Tensor, "batch width hidden"], feature: Float[Tensor, "batch width hidden"], rows: LayerCache
    ) -> Float[Tensor, "batch width hidden"]:
        """The predicted features of pairs that follow those in the cache; ``rows`` is prepared for them."""
        state = self._merged(token, feature)
        rotary = self.rotary(state, rows.positions().expand(len(token), -1))
        mask = rows.causal_mask(state.dtype)
        for index, layer in enumerate(self.layers):
            attention = layer.self_attn
            inputs, residual = layer.enter(token, state)  # type: ignore[operator]
            query, key, value = attention.project(inputs, rotary)  # type: ignore[operator, union-attr]
            keys, values = rows.update(key, value, index)
            attended = scaled_dot_product_attention(
                query, attention.widen(keys), attention.widen(values), attn_mask=mask  # type: ignore
            )  # fmt: skip
            state = layer.leave(residual, attention.merge(attended))  # type: ignore[operator, union-attr]
        return self._predicted(state)

    def unroll(
        self, token: Float[Tensor, "batch length hidden"], feature: Float[Tensor, "batch length hidden"], depth: int
    ) -> list[Float[Tensor, "batch length hidden"]]:
        """Predicted features when the head has been running on its own predictions for 0..depth-1 steps.

        Entry s at pair t is what a chain predicts that began s pairs before with the target's own features: it attends
        to the target's pairs up to t - s, and to its own s pairs after them (EAGLE-3, section 3.1, figure 6). Entries
        before pair s are not meant. All positions run side by side, so a profile needs one call.
        """
        batch, length = token.shape[:2]
        positions = torch.arange(length, device=token.device)
        rotary = self.rotary(feature, positions.expand(batch, -1))
        kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        out: list[Tensor] = []
        for step in range(depth):
            state = self._merged(token, feature)
            older = positions.unsqueeze(0) <= positions.unsqueeze(1) - step  # [query, key] of step zero
            for memory, layer in zip(kept, self.layers, strict=True):
                inputs, residual = layer.enter(token, state)  # type: ignore[operator]
                attended = _chain_attention(layer.self_attn, inputs, rotary, memory, older)  # type: ignore[arg-type]
                state = layer.leave(residual, attended)  # type: ignore[operator]
            out.append(self._predicted(state))
            feature = torch.cat([out[-1][:, :1], out[-1][:, :-1]], dim=1)  # that at t - 1 is the feature of pair t
        return out

    def readout(self, feature: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape hidden"]:
        """What the output head reads of a predicted feature; a norm that was fed back is not applied again."""
        return feature if self.shape.norm_output else self.norm(feature)

    def logits(self, feature: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape outputs"]:
        """Those of the head's own output head, over its own vocabulary."""
        assert self.lm_head is not None
        return self.lm_head(self.readout(feature))

    def ids(self, outputs: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The target's ids of the head's own."""
        return outputs if self.d2t is None else outputs + self.d2t[outputs]


def _norm(width: int, epsilon: float, present: bool) -> nn.Module:
    """A norm, or where there is none what leaves a state as it is and holds no weight."""
    return LlamaRMSNorm(width, epsilon) if present else nn.Identity()


def _chain_attention(
    attention: EagleAttention, inputs: Tensor, rotary: tuple[Tensor, Tensor], memory: list[tuple[Tensor, Tensor]],
    older: Bool[Tensor, "length length"],
) -> Tensor:  # fmt: skip
    """Attention of one step of ``unroll``: to step zero's pairs as ``older`` allows, then to one pair a later step."""
    query, key, value = attention.project(inputs, rotary)
    memory.append((attention.widen(key), attention.widen(value)))
    step = len(memory) - 1
    scale = attention.dim**-0.5
    first_keys, first_values = memory[0]
    scores = [(query @ first_keys.transpose(-1, -2) * scale).masked_fill(~older, -torch.inf)]
    shifted = []
    for number in range(1, step + 1):
        back = step - number  # the chain's pair of that step stands so many before the query
        keys, values = (states.roll(back, dims=2) for states in memory[number])
        scores.append((query * keys).sum(-1, keepdim=True) * scale)
        shifted.append(values)
    weights = torch.cat(scores, -1).softmax(-1).nan_to_num()
    length = first_keys.shape[2]
    attended = weights[..., :length] @ first_values
    for number, values in enumerate(shifted):
        attended = attended + weights[..., length + number].unsqueeze(-1) * values
    return attention.merge(attended)
