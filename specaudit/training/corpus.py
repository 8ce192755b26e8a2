"""Text for training: documents by category, a byte-level BPE, and packed token streams."""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
CATEGORY_OF_SUFFIX = {".txt": "dialogue", ".jsonl": "word_problem", ".py": "code"}
PARAGRAPHS_PER_DOCUMENT = 12


def _scenes(text: str) -> Iterator[str]:
    paragraphs = [p for p in text.split("\n\n") if p.strip()]
    for start in range(0, len(paragraphs), PARAGRAPHS_PER_DOCUMENT):
        yield "\n\n".join(paragraphs[start : start + PARAGRAPHS_PER_DOCUMENT])


def _problems(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.strip():
            row = json.loads(line)
            yield f"Question: {row['question']}\nAnswer: {row['answer']}"


def _read(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".txt":
        yield from _scenes(text)
    elif path.suffix == ".jsonl":
        yield from _problems(text.splitlines())
    elif text.strip():
        yield text


def read_documents(folder: Path, *, standard_library: bool, seed: int) -> dict[str, list[str]]:
    """Documents by category, shuffled: plays from ``.txt``, question/answer lines from ``.jsonl``, code from ``.py``.

    ``standard_library`` adds the sources of the running Python's own library, without its tests.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix in CATEGORY_OF_SUFFIX)
    if standard_library:
        root = Path(sysconfig.get_path("stdlib"))
        skip = {"site-packages", "test", "tests", "idlelib", "__pycache__", "pydoc_data", "encodings"}
        files += sorted(p for p in root.rglob("*.py") if not skip & set(p.relative_to(root).parts))
    documents: dict[str, list[str]] = {}
    for path in files:
        documents.setdefault(CATEGORY_OF_SUFFIX[path.suffix], []).extend(_read(path))
    for texts in documents.values():
        random.Random(seed).shuffle(texts)
    return documents


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of ``vocabulary`` tokens whose encodings start with the end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=2048
    )


def pack(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """One stream of token ids, each document opened by the end-of-text token, which so closes the one before."""
    encodings = tokenizer(list(texts), verbose=False)["input_ids"]
    return np.concatenate([np.asarray(ids, dtype=np.int64) for ids in encodings])


def blocks(
    streams: list[tuple[np.ndarray, float]], rows: int, length: int, generator: np.random.Generator
) -> np.ndarray:
    """``[rows, length]`` windows at uniform positions, each from a stream drawn by its weight."""
    weights = np.array([weight for _, weight in streams])
    chosen = generator.choice(len(streams), size=rows, p=weights / weights.sum())
    out = np.empty((rows, length), dtype=np.int64)
    for row, index in enumerate(chosen):
        stream = streams[index][0]
        start = generator.integers(0, len(stream) - length)
        out[row] = stream[start : start + length]
    return out
