"""What the tests of sampled output need of all outputs so far: e-processes and sums, in a size that does not grow."""

from __future__ import annotations

import math

import numpy as np

from specaudit.audit.evidence import LARGEST_RATIO, Alternative, Evidence
from specaudit.audit.independence import shared_numbers_tests
from specaudit.stats import (
    MINIMUM_PAIRS,
    MINIMUM_PER_BIN,
    MINIMUM_PER_GROUP,
    MINIMUM_TOKENS_CRAMER_VON_MISES,
    ExcessLaw,
    RunningMixture,
    TestResult,
    chi_square_uniform,
    contamination_epsilons,
    contamination_upper_bound,
    cramer_von_mises_uniform,
    group_test,
    lag_test,
    log_contamination_increments,
    log_law_increments,
    log_mean_exp,
    pit_values,
)
from specaudit.stats.checks import Floats

FULL = 63 / 64  # the rest survives tokens that a law all but excludes
IN_PART = (FULL, 0.5, 0.25)  # of laws whose size or place is not known
IN_FULL = (FULL,) * len(IN_PART)
POSITIVE = (FULL, *(float(epsilon) for epsilon in contamination_epsilons(6) if epsilon > 0))
BINS = 32
READ_TOKENS = 1 << 20  # the fixed-sample tests and the bound read no further: 40 MB, an effect of a thousandth
PLANNED_TOKENS = 8192  # of the bound's stakes, which must not follow the outputs' lengths


class Tally:
    """Reads outputs in their order.

    Parameters
    ----------
    vocabulary : int
        Of the target.
    seed : int
        Of the uniforms that randomise the PIT.
    noise : float
        Of `log_contamination_increments`: zero, or a total variation times the largest ratio of the evidence.

    Attributes
    ----------
    directions : dict of str to RunningMixture
        The e-process of each contamination, "draft" first where there is one.
    laws : list of (name, variant)
        In the order of their components in ``bug_laws``, one a strength.
    bug_laws : RunningMixture, optional
        Of all laws: every name has an equal share, and within it every variant and strength.
    strays, boundary : int
        Tokens to which the target gives no mass; those of none that the machine's noise may have let in are no strays.
    """

    def __init__(self, vocabulary: int, seed: int, noise: float = 0.0) -> None:
        self.vocabulary, self.seed, self.noise = vocabulary, seed, noise
        self.tokens = self.strays = self.boundary = 0
        self.directions: dict[str, RunningMixture] = {}
        self.laws: list[tuple[str, str]] = []
        self.bug_laws: RunningMixture | None = None
        self.leading_excess: ExcessLaw | None = None
        # For naming a cause where stray tokens are: logarithms of likelihoods over the target's, by strength.
        self.likelihoods: dict[str, Floats] = {}
        self.law_likelihoods = np.zeros((0, len(IN_PART)))
        self.u, self.u_by_id = np.zeros(0), np.zeros(0)
        self.groups, self.depth, self.place = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self.hits = np.zeros((3, 0))  # whether r > p, and the target's and r's mass of that

    def add(self, evidence: Evidence, index: int) -> None:
        """Takes up output ``index``."""
        if not self.directions:
            self._open(evidence)
        self.tokens += len(evidence.mass)
        self.boundary += int(evidence.boundary.sum())
        self.strays += int((evidence.impossible & ~evidence.boundary).sum())
        excess = evidence.leading_excess
        self.leading_excess = excess if self.leading_excess is None else self.leading_excess + excess
        for name, alternative in evidence.directions.items():
            ratio, support = _ratio(alternative, evidence), alternative.on_support
            assert alternative.max_ratio is not None
            increments = log_contamination_increments(ratio, support, alternative.max_ratio, noise=self.noise)
            self.directions[name].read(increments)
            self.likelihoods[name] += _likelihoods(alternative, evidence, POSITIVE)
        if self.bug_laws is not None:
            self._add_laws(evidence, self.bug_laws)
        if len(self.u) < READ_TOKENS:
            self._add_tokens(evidence, index)

    def _open(self, evidence: Evidence) -> None:
        self.directions = {name: RunningMixture(np.ones(2 * 6)) for name in evidence.directions}
        self.likelihoods = {name: np.zeros(len(POSITIVE)) for name in evidence.directions}
        self.laws = [(law.name, law.variant) for law in evidence.laws]
        self.law_likelihoods = np.zeros((len(self.laws), len(IN_PART)))
        names = [name for name, _ in self.laws]
        if names:
            self.bug_laws = RunningMixture(np.repeat([1.0 / names.count(name) for name in names], len(IN_PART)))

    def _add_laws(self, evidence: Evidence, mixture: RunningMixture) -> None:
        increments = []
        for place, (law, alternative) in enumerate(evidence.laws.items()):
            strengths = IN_FULL if not law.graded and (evidence.exact or law.where == "all") else IN_PART
            ratio = _ratio(alternative, evidence)
            increments.append(log_law_increments(ratio, alternative.on_support, strengths, self.noise))
            self.law_likelihoods[place] += _likelihoods(alternative, evidence, strengths)
        mixture.read(np.concatenate(increments))

    def _add_tokens(self, evidence: Evidence, index: int) -> None:
        # A stream an output: what an output is given does not depend on those before it.
        uniforms = np.random.default_rng([self.seed, 1, index]).random(len(evidence.mass))
        possible = ~evidence.impossible
        found = {
            "u": pit_values(evidence.below, evidence.mass, uniforms),
            "u_by_id": pit_values(evidence.below_by_id, evidence.mass, uniforms),
            "groups": np.full(len(possible), index), "depth": evidence.depth, "place": evidence.place,
        }  # fmt: skip
        for name, values in found.items():
            setattr(self, name, np.concatenate([getattr(self, name), values[possible]]))
        hits = np.stack([evidence.favoured, evidence.favoured_by_target, evidence.favoured_by_leading])
        self.hits = np.concatenate([self.hits, hits], axis=1)

    @property
    def log_e(self) -> dict[str, float]:
        """Natural logarithm of each cause's e-value: the directions' and the laws', by name."""
        found = {name: mixture.eprocess.log_e for name, mixture in self.directions.items()}
        if self.bug_laws is not None:
            by_law = self.bug_laws.log_e_by_component.reshape(len(self.laws), len(IN_PART))
            found |= self._by_name(by_law)
        return found

    def explained(self) -> dict[str, float]:
        """Each cause's log-likelihood over the target's, strays included: to name a cause, and for no test.

        The cause ``impossible_token`` stands for stray tokens from anywhere in the vocabulary, as many as there are.
        Others that leave one unexplained have none, ``-inf``.
        """
        rest = self.tokens - self.strays
        usual = self.strays * math.log(self.strays / self.tokens / self.vocabulary) if self.strays else 0.0
        usual += rest * math.log(rest / self.tokens) if rest else 0.0
        directions = {name: float(log_mean_exp(values)) for name, values in self.likelihoods.items()}
        return {"impossible_token": usual, **directions, **self._by_name(self.law_likelihoods)}

    def _by_name(self, values: Floats) -> dict[str, float]:
        """Averages of ``exp(values)``, ``[laws, strengths]``, over strengths and then over a name's variants."""
        variants: dict[str, list[float]] = {}
        for (name, _), strengths in zip(self.laws, values, strict=True):
            variants.setdefault(name, []).append(float(log_mean_exp(strengths)))
        return {name: float(log_mean_exp(found)) for name, found in variants.items()}

    def contamination_bound(self, delta: float) -> float:
        """What the tokens exclude of contamination by the first direction: a larger one would have been bounded so low
        at any look with probability at most ``delta``. At most 1, which excludes nothing.
        """
        hit, target_mass, leading_mass = self.hits
        # The machine's noise may have taken this much of the favoured tokens' mass, under either law.
        lost = self.noise / LARGEST_RATIO
        target_mass, leading_mass = (np.maximum(mass - lost, 0.0) for mass in (target_mass, leading_mass))
        return contamination_upper_bound(hit, target_mass, leading_mass, delta, planned_tokens=PLANNED_TOKENS)

    def pit_tests(self) -> list[TestResult]:
        """Those of the tests of the PIT values for which there are enough tokens."""
        results = []
        bins = min(BINS, len(self.u) // MINIMUM_PER_BIN)
        if bins >= 2:
            results.append(chi_square_uniform(self.u, bins))
        if len(self.u) >= MINIMUM_TOKENS_CRAMER_VON_MISES:
            results.append(cramer_von_mises_uniform(self.u))
        if int((self.groups[1:] == self.groups[:-1]).sum()) >= MINIMUM_PAIRS:
            results.append(lag_test(self.u, self.groups))
        known = self.depth >= 0
        for name, groups, kept in (("pit_depth", self.depth, known), ("pit_output", self.groups, slice(None))):
            if np.unique(groups[kept], return_counts=True)[1].max(initial=0) >= MINIMUM_PER_GROUP:
                results.append(group_test(self.u[kept], groups[kept], name))
        return [*results, *shared_numbers_tests(self.u_by_id, self.groups, self.place)]


def _ratio(alternative: Alternative, evidence: Evidence) -> Floats:
    # A token outside the support is a violation counted apart; here it is neutral.
    return np.where(evidence.impossible, alternative.on_support, alternative.relative)


def _likelihoods(alternative: Alternative, evidence: Evidence, strengths: tuple[float, ...]) -> Floats:
    counted = ~evidence.boundary  # a token there says nothing of either
    relative, impossible = alternative.relative[counted], evidence.impossible[counted]
    with np.errstate(divide="ignore"):
        return np.array(
            [
                np.log(np.where(impossible, strength * relative, 1.0 + strength * (relative - 1.0))).sum()
                for strength in strengths
            ]
        )
