"""Splits by context: no context on two sides, and none of a test file's among what is trained on.

Contract: contexts are the same where they differ in blanks and case only. A split is a function of the context
and the seed, so that a context stays on its side when data is added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .data import Example, digest


def context_key(context: str) -> str:
    """A hash that is the same for contexts that differ in blanks and case only."""
    return hashlib.sha256(" ".join(context.split()).casefold().encode("utf-8", "replace")).hexdigest()


def split_by_context(
    examples: Sequence[Example], *, validation: float = 0.15, seed: int = 0
) -> tuple[list[Example], list[Example]]:
    """(train, validation), each in order. validation: the share of contexts, expected; from 0 to 1."""
    if not 0.0 <= validation <= 1.0:
        raise ValueError(f"validation: expected a share from 0 to 1, got {validation}")
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        sides[digest(f"{seed}\0{context_key(example.context)}") < validation * 2**64].append(example)
    check_disjoint(sides[0], (example.context for example in sides[1]), "validation")
    return sides


def check_disjoint(examples: Iterable[Example], contexts: Iterable[str], name: str = "test") -> None:
    """Raise ValueError where an example's context is among `contexts`. name: what the error calls them."""
    held = {context_key(context) for context in contexts}
    shared = [example.id for example in examples if context_key(example.context) in held]
    if shared:
        raise ValueError(
            f"expected no context of {name} among the examples, got {len(shared)} (first {shared[0]!r})"
        )


def unseen(rows: Iterable[Mapping[str, Any]], examples: Iterable[Example]) -> list[Mapping[str, Any]]:
    """The rows of a test file whose `context` none of the examples has.

    number_mentions marks rows whose context is in its training file (`context_in_train`); those are left out
    too, whatever was trained on.
    """
    seen = {context_key(example.context) for example in examples}
    return [
        row for row in rows if not row.get("context_in_train") and context_key(row["context"]) not in seen
    ]
