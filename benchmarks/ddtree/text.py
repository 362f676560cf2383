"""Text that every machine with Python has: the sources of the standard library, and a tokenizer trained on them.

The files are taken in the order of their names and dealt into three parts by the hash of their path, so that a file is in the same part on every
machine: `train` (both models see it), `draft` (prompts for the drafter's training, unseen by the target), `eval` (unseen by both).
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_ID = 0
"""Token between files, and end of text."""
MASK_ID = 1
"""Token that stands for a position which the drafter has to fill."""

PARTS = ("train", "draft", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Sources, by part."""

    parts: dict[str, tuple[str, ...]]
    """Text of each file."""
    sha256: str
    """Of all text, in order."""


def part_of(name: str) -> str:
    """Part that a file belongs to: 5 % `eval`, 5 % `draft`, the rest `train`."""
    first = hashlib.sha256(name.encode()).digest()[0]
    return "eval" if first < 13 else "draft" if first < 26 else "train"


def read_corpus(folders: tuple[Path, ...], *, limit_bytes: int) -> Corpus:
    """Python sources of folders, without tests and without installed packages.

    Args:
        folders: Where to look; the standard library when empty.
        limit_bytes: Stop after this much text.
    """
    places = folders or (Path(sysconfig.get_paths()["stdlib"]),)
    passed_over = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    parts: dict[str, list[str]] = {part: [] for part in PARTS}
    digest = hashlib.sha256()
    size = 0
    for place in places:
        for path in sorted(place.rglob("*.py")):
            name = path.relative_to(place).as_posix()
            if passed_over & set(path.relative_to(place).parts) or size > limit_bytes:
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            if len(text) < 200:
                continue
            digest.update(text.encode())
            size += len(text)
            parts[part_of(name)].append(text)
    return Corpus(parts={part: tuple(texts) for part, texts in parts.items()}, sha256=digest.hexdigest())


def train_tokenizer(texts: tuple[str, ...], *, vocab: int) -> Tokenizer:
    """Byte-level BPE with the two special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|end|>", "<|mask|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: tuple[str, ...]) -> list[int]:
    """Ids of all texts, with the end token after each."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids.extend(encoding.ids)
        ids.append(END_ID)
    return ids
