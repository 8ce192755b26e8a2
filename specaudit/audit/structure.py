"""What transcripts say of themselves, checked exactly against their own lengths, limits and end tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from specaudit.audit.outcome import Test
from specaudit.core.types import Transcript

EXPLANATIONS = {
    "structure": "the transcripts contradict their own round counts",
    "past_limit": "outputs are longer than their own limit on new tokens, or say that it ended them and are shorter",
    "after_end": "outputs go on after a token that ends outputs, or padding was left in them",
    "stop_without_end": "outputs say that they stopped, and their last token is none of those that end them",
    "declared_lossy": "the transcripts name a verification rule that does not preserve the target's distribution",
}
ROOM = 64  # tokens of its context that an engine may leave free, because a round of drafts would not fit


@dataclass
class Claims:
    """Reads transcripts as they come; what it keeps does not grow with them.

    Parameters
    ----------
    end_ids : collection of int
        The target's end tokens, where there is a target. An engine may know only some of them, or run on past all. So
        one of them ends outputs if an output of the same run stopped at it, and never otherwise. A transcript that
        lists ``engine["end_ids"]`` is held to its own list instead.
    """

    end_ids: Collection[int] = ()
    counts: Counter[str] = field(default_factory=Counter)
    stopped_at: list[int] = field(default_factory=list)
    passed: Counter[int] = field(default_factory=Counter)
    longest: int = 0
    cut_at: Counter[int] = field(default_factory=Counter)

    def add(self, transcripts: Iterable[Transcript]) -> None:
        for transcript in transcripts:
            engine = transcript.engine
            self.counts["structure"] += not adds_up(transcript)
            self.counts["declared_lossy"] += not engine.get("preserves_target", True)
            self._limit(transcript, _whole(engine.get("max_new_tokens")))
            own = _ids(engine.get("end_ids"))
            if own is None:
                self._end(transcript)
            else:
                self.counts["after_end"] += not own.isdisjoint(transcript.output_ids[:-1])
                self.counts["stop_without_end"] += _stops_nowhere(transcript, own)

    def _limit(self, transcript: Transcript, limit: int | None) -> None:
        whole = len(transcript.prompt_ids) + len(transcript.output_ids)
        self.longest = max(self.longest, whole)
        if limit is None:
            return
        self.counts["past_limit"] += len(transcript.output_ids) > limit
        if transcript.finish_reason == "length" and len(transcript.output_ids) < limit:
            self.cut_at[whole] += 1  # by a full context, unless another output shows that it holds more

    def _end(self, transcript: Transcript) -> None:
        output = transcript.output_ids
        if transcript.finish_reason == "stop" and output and output[-1] in self.end_ids:
            self.stopped_at = sorted({*self.stopped_at, output[-1]})
        self.passed.update(set(self.end_ids).intersection(output[:-1]))

    def state(self) -> dict[str, Any]:
        """What was read, for JSON; `resume` takes it up again."""
        counters = {name: list(getattr(self, name).items()) for name in ("counts", "passed", "cut_at")}
        return {**counters, "stopped_at": self.stopped_at, "longest": self.longest}

    def resume(self, state: dict[str, Any]) -> None:
        self.stopped_at, self.longest = list(state["stopped_at"]), state["longest"]
        self.counts, self.passed, self.cut_at = (
            Counter({key: count for key, count in state[name]}) for name in ("counts", "passed", "cut_at")
        )

    def tests(self) -> list[Test]:
        """How many transcripts break each rule."""
        contradicted = sum(count for token, count in self.passed.items() if token in self.stopped_at)
        cut = sum(count for whole, count in self.cut_at.items() if whole + ROOM < self.longest)
        counts = self.counts + Counter({"after_end": contradicted, "past_limit": cut})
        return [Test(name, float(counts[name]), counts[name] > 0) for name in EXPLANATIONS]


def tests(transcripts: Iterable[Transcript], end_ids: Collection[int] = ()) -> list[Test]:
    """How many transcripts contradict themselves, by rule, and how many call themselves lossy.

    No amount of agreement with the target makes lossless what declares itself lossy.
    """
    claims = Claims(end_ids)
    claims.add(transcripts)
    return claims.tests()


def adds_up(transcript: Transcript) -> bool:
    """Whether its rounds, if it names any, account for its output.

    Every round emits its accepted tokens and one more. Only the last may be cut short: at a limit after one token or
    more, and at a stop after none, since some engines leave the end token out.
    """
    rounds, tokens = transcript.rounds, len(transcript.output_ids)
    if rounds is None:
        return True
    if not rounds:
        return tokens == 0
    before = sum(rounds[:-1]) + len(rounds) - 1
    least = before + 1 if transcript.finish_reason == "length" else before
    return min(rounds) >= 0 and least <= tokens <= before + rounds[-1] + 1


def _stops_nowhere(transcript: Transcript, end_ids: frozenset[int]) -> bool:
    """Whether it stopped, though at no end token, and no string could have stopped it."""
    strings, output = transcript.engine.get("stop_strings"), transcript.output_ids
    return transcript.finish_reason == "stop" and strings == [] and bool(output) and output[-1] not in end_ids


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _ids(value: Any) -> frozenset[int] | None:
    """Token ids that an engine lists, None where it lists none or something else."""
    known = isinstance(value, list | tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    return frozenset(value) if known else None
