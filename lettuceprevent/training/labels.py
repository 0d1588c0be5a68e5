"""Character spans of an answer as labels on a host's tokens, or on a detector's.

Contract: the answer is tokenised on its own, without special tokens; a token is labelled where a character of
its offsets is in a span. Tokens without characters are never labelled. Fast tokenizers only: offsets are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..alignment import TRAINABLE, Alignment
from .data import Example, Span, digest


@dataclass(frozen=True)
class LabelledTokens:
    """ids (n,): the answer's tokens. labels (n,) bool: unsupported. offsets: their characters."""

    ids: tuple[int, ...]
    labels: NDArray[np.bool_]
    offsets: tuple[Span, ...]


def label_tokens(example: Example, tokenizer: Any) -> LabelledTokens:
    """The answer under one host's tokenizer. Raises TypeError for a slow one, which has no offsets."""
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(f"expected a fast tokenizer, got {type(tokenizer).__name__}")
    found = tokenizer(example.answer, add_special_tokens=False, return_offsets_mapping=True)
    offsets = tuple((int(start), int(end)) for start, end in found["offset_mapping"])
    return LabelledTokens(tuple(found["input_ids"]), labels_of(offsets, example), offsets)


def label_detector_tokens(
    example: Example, tokenizer: Any, alignment: Alignment
) -> tuple[tuple[int, ...], NDArray[np.bool_]]:
    """(ids, labels) of the answer in detector tokens, as `alignment` shows a detector the host's; both (n,).

    tokenizer: under `host_chunks` the host's (for a detector used with `reference_chunks`: the one named there),
    and each piece has its token's label; under `direct` the detector's own.
    """
    found = label_tokens(example, tokenizer)
    if alignment.mode == "direct":
        return found.ids, found.labels
    if alignment.mode not in TRAINABLE:
        raise ValueError(
            f"expected an alignment among {', '.join(TRAINABLE)} in training, got {alignment.mode!r}"
        )
    pieces = alignment.paths((), found.ids)[1]  # append-only: a token's ids are the same wherever it stands
    ids = tuple(piece for each in pieces for piece in each)
    return ids, np.repeat(found.labels, [len(each) for each in pieces])


def labels_of(offsets: Sequence[Span], example: Example) -> NDArray[np.bool_]:
    """Which tokens, given by their characters, hold a character of a span; (len(offsets),)."""
    before = np.zeros(len(example.answer) + 1, np.int64)  # marked characters before each place
    for start, end in example.spans:
        before[start + 1 : end + 1] = 1
    before = before.cumsum()
    if not offsets:
        return np.zeros(0, bool)
    places = np.array(offsets, np.int64)
    return np.asarray(before[places[:, 1]] > before[places[:, 0]])


def drawn(example: Example, hosts: Sequence[Any], seed: int = 0) -> Any:
    """One of several hosts (tokenizers, names), drawn for this example: the same for the same id and seed."""
    if not hosts:
        raise ValueError("expected at least one host, got none")
    return hosts[digest(f"{seed}\0{example.id}") % len(hosts)]
