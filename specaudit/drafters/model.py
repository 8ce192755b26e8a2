"""An independent draft model that proposes a chain, sampled from its own processed distribution.

Leviathan et al. (arXiv:2211.17192) and Chen et al. (arXiv:2302.01318). Costs k passes of the draft a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from specaudit.core.protocols import CausalModel, LoadModel, Target
from specaudit.core.sampling import TokenCounts, processed_along
from specaudit.core.sequences import Sequence_
from specaudit.core.types import Proposal, Replay, SamplingParams
from specaudit.drafters.chain import draw_chain, nothing


class ModelDrafter:
    """Implements ``core.protocols.Drafter`` with a second causal model of the same vocabulary.

    Parameters
    ----------
    model : CausalModel
        The draft.
    vocabulary : int
        The target's number of logits: the draft's are cut, or padded with impossible tokens, to that.
    """

    hidden_layers: tuple[int, ...] = ()
    declares_lossy: str | None = None
    content: str | None = None

    def __init__(self, model: CausalModel, vocabulary: int) -> None:
        self.model, self.vocabulary, self.name = model, vocabulary, model.name

    def room(self, k: int) -> tuple[int, int]:
        return k, k

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.params = params
        self.rows = self.model.open_rows(len(prompts), capacity)
        self.rows.read([self._known(prompt[:-1]) for prompt in prompts])
        self.drafted = 0
        # Tokens that are committed and that the draft has not read: the root, and after a full acceptance one before.
        self.pending = [[prompt[-1]] for prompt in prompts]
        self.counts = TokenCounts.of(prompts, self.vocabulary, self.model.device) if params.penalised else None

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch k"]) -> Proposal:
        depth = max(limits)
        if depth == 0:
            return nothing(len(limits), self.model.device)
        tokens, probs = draw_chain(self._logits_after, depth, self.params, self.counts, uniforms)
        self.drafted = depth
        return Proposal(tokens, tuple(limits), probs)

    def _logits_after(self, tokens: Int[Tensor, " batch"] | None) -> Float[Tensor, "batch vocab"]:
        if tokens is None:
            return self._fitted(self._read_pending())
        logits = self.rows.forward(tokens.unsqueeze(1))[:, -1]
        self.rows.commit([1] * len(tokens))
        return self._fitted(logits)

    def _known(self, ids: Sequence[int]) -> list[int]:
        """``ids`` as the draft can read them: a target of a larger embedding may emit what the draft has no row for."""
        return [min(token, self.model.vocabulary - 1) for token in ids]

    def _read_pending(self) -> Float[Tensor, "batch vocab"]:
        counts = [len(tokens) for tokens in self.pending]
        width = max(counts)
        padded = [self._known(tokens) + [0] * (width - len(tokens)) for tokens in self.pending]
        ids = torch.tensor(padded, device=self.model.device)
        logits = self.rows.forward(ids)
        self.rows.commit(counts)
        self.known = list(self.rows.lengths)
        if min(counts) == width:
            return logits[:, -1]
        last = torch.tensor(counts, device=logits.device) - 1
        return logits[torch.arange(len(counts), device=logits.device), last]

    def _fitted(self, logits: Float[Tensor, "batch v"]) -> Float[Tensor, "batch vocab"]:
        if logits.shape[1] >= self.vocabulary:
            return logits[:, : self.vocabulary]
        return pad(logits, (0, self.vocabulary - logits.shape[1]), value=-torch.inf)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        if self.drafted == 0:
            self.pending = [old + list(new) for old, new in zip(self.pending, emitted, strict=True)]
        else:
            # Of the chain the draft has read all but the last token; of the emitted tokens the last is new to it.
            kept = [min(len(tokens), self.drafted) - 1 for tokens in emitted]
            self.rows.rewind([known + keep for known, keep in zip(self.known, kept, strict=True)])
            self.pending = [list(tokens[keep:]) for tokens, keep in zip(emitted, kept, strict=True)]
        self.drafted = 0
        if self.counts is not None:
            self.counts.extend(emitted)

    def keep(self, rows: list[int]) -> None:
        self.rows.keep(rows)
        self.pending = [self.pending[row] for row in rows]
        if self.counts is not None:
            self.counts.keep(rows)

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """The draft's law depends on the prefix alone, so one pass serves every depth."""
        known = [(self._known(prompt), self._known(output)) for prompt, output in sequences]
        for index, logits in self.model.output_logits(known, self.vocabulary):
            prompt, output = known[index]
            yield index, Replay(probs=processed_along(logits, prompt, output, params), logits=logits)


def create(name: str, target: CausalModel, load_model: LoadModel) -> ModelDrafter:
    """``load_model`` has checked the draft's tokenizer against the target's."""
    return ModelDrafter(load_model(name), target.vocabulary)
