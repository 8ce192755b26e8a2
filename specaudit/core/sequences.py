"""The order in which whole sequences are scored, shared by target and draft so that their results pair up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Ids = Sequence[int]
Sequence_ = tuple[Ids, Ids]


def scoring_order(sequences: Sequence[Sequence_]) -> list[int]:
    """Indexes by total length, ties by index: neighbours then pad little."""
    return sorted(range(len(sequences)), key=lambda i: (len(sequences[i][0]) + len(sequences[i][1]), i))


def token_batches(sequences: Sequence[Sequence_], tokens_per_batch: int) -> Iterator[list[int]]:
    """Runs of ``scoring_order`` whose padded size stays within ``tokens_per_batch``, at least one sequence each."""
    batch: list[int] = []
    for index in scoring_order(sequences):
        length = len(sequences[index][0]) + len(sequences[index][1])
        if batch and length * (len(batch) + 1) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
