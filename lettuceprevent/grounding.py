"""Contexts and queries as a caller writes them, made into one `Grounding` per row.

Contract: a `Grounding` is immutable and hashable; two with the same content are equal and have the same key.
Nothing here knows about tokens. Whatever cannot be read in exactly one way raises and says what was expected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Entry: TypeAlias = "str | Sequence[str] | Grounding"


@dataclass(frozen=True)
class Grounding:
    """The evidence for one row: context passages, and the query where there is one."""

    passages: tuple[str, ...]
    query: str = ""

    @cached_property
    def text(self) -> str:
        """The passages joined by a blank line. Evidence offsets count characters of this text."""
        return "\n\n".join(self.passages)

    @cached_property
    def key(self) -> str:
        """A hash of the content that is stable between processes, for caches."""
        content = json.dumps([list(self.passages), self.query], ensure_ascii=True)
        return hashlib.sha256(content.encode("ascii")).hexdigest()


def as_groundings(
    input_text: Entry | Sequence[Entry], query: str | Sequence[str] | None = None, rows: int | None = None
) -> list[Grounding]:
    """Read `input_text` (and `query`) as groundings: one that all rows share, or one per row.

    `input_text` is a string, a list of passages, or a list with one such entry per row of the batch. A list
    of strings is one row's passages when `rows` is 1 or None, and one context per row when its length equals
    `rows`; any other length raises ValueError. `query` is a string that all rows share, or one per row.
    """
    entries = _entries(input_text, rows)
    if rows is not None and len(entries) not in (1, rows):
        raise ValueError(
            f"input_text: expected one entry for all rows or one per row of the batch ({rows}), "
            f"got {len(entries)} entries"
        )
    queries = _queries(query, rows)
    if len(queries) > 1 and len(entries) == 1:
        entries = entries * len(queries)
    if len(queries) == 1:
        queries = queries * len(entries)
    if len(queries) != len(entries):
        raise ValueError(f"query: expected one string, or one per row ({len(entries)}), got {len(queries)}")
    return [
        _grounding(entry, text, row) for row, (entry, text) in enumerate(zip(entries, queries, strict=True))
    ]


def _entries(input_text: Entry | Sequence[Entry], rows: int | None) -> list[Entry]:
    if isinstance(input_text, str | Grounding):
        return [input_text]
    if not isinstance(input_text, Sequence) or isinstance(input_text, bytes):
        raise TypeError(
            "input_text: expected a string, a list of passages, or one such entry per row of the batch, "
            f"got {type(input_text).__name__}"
        )
    items = list(input_text)
    if not items:
        raise ValueError("input_text: expected at least one passage, got an empty list")
    if not all(isinstance(item, str) for item in items):
        return list(items)  # an entry that is no string can only be a row
    if rows is None or rows == 1:
        return [[item for item in items if isinstance(item, str)]]
    if len(items) == rows:
        return list(items)
    raise ValueError(
        f"input_text: {len(items)} strings for {rows} rows can be read as passages or as rows; expected one "
        f"string, {rows} strings (one context per row), or a list of {rows} lists of passages"
    )


def _queries(query: str | Sequence[str] | None, rows: int | None) -> list[str]:
    if query is None:
        return [""]
    if isinstance(query, str):
        return [query]
    queries = list(query)
    if not queries or not all(isinstance(item, str) for item in queries):
        raise TypeError(f"query: expected a string or a list of strings, got {query!r}")
    if rows is not None and len(queries) not in (1, rows):
        raise ValueError(
            f"query: expected one string, or one per row of the batch ({rows}), got {len(queries)}"
        )
    return queries


def _grounding(entry: Entry, query: str, row: int) -> Grounding:
    if isinstance(entry, Grounding):
        return entry if entry.query or not query else Grounding(entry.passages, query)
    if isinstance(entry, str):
        passages: tuple[str, ...] = (entry,)
    elif isinstance(entry, Sequence) and all(isinstance(passage, str) for passage in entry):
        passages = tuple(entry)
    else:
        raise TypeError(f"input_text, row {row}: expected a string or a list of strings, got {entry!r:.80}")
    if not any(passage.strip() for passage in passages):
        raise ValueError(
            f"input_text, row {row}: expected a context to check against, got only blanks; "
            "pass detector_type=None to generate without checking"
        )
    return Grounding(passages, query)
