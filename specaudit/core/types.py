"""The values that stages hand to each other. Nothing here imports torch when it is loaded."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from specaudit.core.errors import NOT_FINITE, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from specaudit.core.tree import Tree

    Continuation = Callable[[Int[Tensor, "batch nodes"]], Float[Tensor, "batch nodes vocab"]]


@dataclass(frozen=True)
class SamplingParams:
    """The map from logits to the distribution that must be preserved, in the order of transformers' ``generate``.

    Penalties, then temperature, top_k, top_p and min_p. ``temperature = 0`` is greedy decoding, which keeps only the
    penalties. ``repetition_penalty`` is Keskar et al. (arXiv:1909.05858), over prompt and output; ``presence_penalty``
    and ``frequency_penalty`` are subtracted from the logits of tokens in the output, once or per occurrence.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks = [
            ("temperature", self.temperature >= 0, "must be zero (greedy) or more", "use 0 or, for example, 0.8"),
            ("top_k", self.top_k >= 0, "must be zero (off) or more", "use 0 or, for example, 50"),
            ("top_p", 0 < self.top_p <= 1, "must be above 0 and at most 1", "use 1 (off) or, for example, 0.9"),
            ("min_p", 0 <= self.min_p < 1, "must be at least 0 and below 1", "use 0 (off) or, for example, 0.05"),
            ("repetition_penalty", self.repetition_penalty > 0, "must be above 0", "use 1 (off) or, for example, 1.1"),
            ("seed", self.seed >= 0, "must be zero or more", "use a non-negative integer"),
        ]
        for name, passed, problem, remedy in checks:
            if not (passed and math.isfinite(getattr(self, name))):
                raise InputError(name, getattr(self, name), problem, remedy)
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(name, getattr(self, name), "must be a finite number", "use 0 (off)")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """The transcript schema's mapping: penalties appear only where one is on."""
        out = dataclasses.asdict(self)
        if not self.penalised:
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
                del out[name]
        return out


@dataclass(frozen=True)
class Proposal:
    """What a drafter proposes for each row of a batch after the row's last committed token: a chain, or a tree.

    Attributes
    ----------
    tokens : Int[Tensor, "batch width"]
        Proposed ids, one a node; entries at or beyond a row's length are padding.
    lengths : tuple of int
        How many of them are proposed, a number a row, between 0 and ``width``.
    draft_probs : Float[Tensor, "batch width vocab"] or "point_mass"
        For each node the distribution that its token was really drawn from: dense, or one at the token itself. A
        sibling drawn without replacement was drawn from its parent's law without the siblings before it, renormalised.
    tree : Tree, optional
        Each node's parent, and after the nodes those of ``extra_tokens``. None is a chain without extra tokens.
    extra_tokens : Int[Tensor, "batch extra"], optional
        Tokens that the target scores in the same pass and that are not verified.
    continuation : callable, optional
        Stands in for ``forward`` of the target's rows where the drafter has done a part of that pass already: takes
        the root and the proposed tokens, gives the same logits, and leaves the same cache rows.
    """

    tokens: Int[Tensor, "batch width"]
    lengths: tuple[int, ...]
    draft_probs: Float[Tensor, "batch width vocab"] | Literal["point_mass"]
    tree: Tree | None = None
    extra_tokens: Int[Tensor, "batch extra"] | None = None
    continuation: Continuation | None = None

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def depths(self) -> tuple[int, ...]:
        """How deep each row's proposal is: its nodes come in order of depth."""
        if self.tree is None:
            return self.lengths
        return tuple(int(self.tree.depths[self.tree.row(row), count]) for row, count in enumerate(self.lengths))


@dataclass(frozen=True)
class Replay:
    """What a drafter would have proposed along one output, from every token on: ``probs`` or ``chains`` is set.

    Attributes
    ----------
    probs : Float[Tensor, "tokens vocab"], optional
        The law of the first drafted token at each output token; of all depths, where it depends on the prefix alone.
    chains : Int[Tensor, "tokens depth"], optional
        The point-mass chain that a round starting at each token would propose, -1 where it proposes nothing. Of a
        fixed tree the output's own tokens as far as they are among the children, and -2 below.
    first : Int[Tensor, "tokens"], optional
        With ``chains`` of a tree, which depend on the output: the first child that a round starting at each token would
        propose, whatever the token is, or -1. An audit may look at this alone.
    token_probs : Float[Tensor, "tokens depth"], optional
        With ``probs``, where depth matters: the mass that the law at depth d gives to the output's own token, for a
        round that started d tokens before. Of siblings drawn in a tree the mass of it that is accepted, of all of them.
    logits : Float[Tensor, "tokens vocab"], optional
        With ``probs``: the logits that they were made from, before any penalty.
    drafted : Int[Tensor, "tokens"], optional
        With ``probs``: how many tokens a round that starts here would draft, where that is not without limit.

    Raises
    ------
    InputError
        If ``probs`` are not numbers: they would pass for a place where nothing is drafted.
    """

    probs: Float[Tensor, "tokens vocab"] | None = None
    chains: Int[Tensor, "tokens depth"] | None = None
    token_probs: Float[Tensor, "tokens depth"] | None = None
    drafted: Int[Tensor, " tokens"] | None = None
    first: Int[Tensor, " tokens"] | None = None
    logits: Float[Tensor, "tokens vocab"] | None = None

    def __post_init__(self) -> None:
        if self.probs is None:
            return
        wrong = self.probs.amax(-1).isnan()
        if bool(wrong.any()):
            position = int(wrong.nonzero()[0])
            raise InputError(
                "draft", "nan", f"is its probability of every token at output token {position}", NOT_FINITE
            )

    @property
    def first_tokens(self) -> Int[Tensor, " tokens"]:
        """With ``chains``: the token that is proposed first, -1 for none, known before the output's own token is."""
        assert self.chains is not None
        return self.chains[:, 0] if self.first is None else self.first


@dataclass(frozen=True)
class Verification:
    """The outcome of one round, a row each.

    Attributes
    ----------
    accepted : Int[Tensor, "batch"]
        How many proposed tokens are accepted.
    extra_token : Int[Tensor, "batch"]
        The token that follows them.
    bonus : Bool[Tensor, "batch"]
        True where everything proposed was accepted and the extra token is drawn from the target ("bonus"), False
        where a token was rejected ("residual").
    nodes : list of list of int, optional
        Each row's accepted path through the proposal's tree; None where it is a chain's first ``accepted`` tokens.
    """

    accepted: Int[Tensor, " batch"]
    extra_token: Int[Tensor, " batch"]
    bonus: Bool[Tensor, " batch"]
    nodes: list[list[int]] | None = None

    def path(self, row: int, accepted: int) -> list[int]:
        """The accepted nodes of a row, given the row's own count as a number."""
        return list(range(accepted)) if self.nodes is None else self.nodes[row]

    def extra_kind(self, row: int) -> Literal["bonus", "residual"]:
        return "bonus" if bool(self.bonus[row]) else "residual"


@dataclass(frozen=True)
class Round:
    """One draft-and-verify turn of a whole batch: how deep each row's proposal was, what it emitted, and seconds."""

    rows: tuple[int, ...]
    proposed: tuple[int, ...]
    emitted: tuple[int, ...]
    propose_seconds: float
    score_seconds: float
    verify_seconds: float
    total_seconds: float


@dataclass(frozen=True)
class Transcript:
    """One prompt's ids and what an engine made of them. ``rounds`` counts the accepted draft tokens of each round."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    sampling: SamplingParams
    rounds: tuple[int, ...] | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    category: str | None = None


@dataclass(frozen=True)
class Limits:
    """When a row ends: after ``max_new_tokens``, at an end token, at a stop string, or when the context is full."""

    max_new_tokens: int
    end_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError("max_new_tokens", self.max_new_tokens, "must be at least 1", "use, for example, 64")
        if "" in self.stop_strings:
            raise InputError("--stop", "", "an empty string stands in every text", "leave it out")
