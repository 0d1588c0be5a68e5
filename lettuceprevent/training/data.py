"""Training examples from JSON lines: context, query, answer, and which characters of the answer are unsupported.

Contract: one row, one `Example`; spans are characters of the answer, end exclusive, sorted and merged. Known
forms of a row are told by their keys: `spans` ([start, end] pairs or objects; a user's own file), `labels`
(RAGTruth), `consistent` with `diff_spans` (SummEdits: a consistent summary has no spans). Everything else is
refused, number mentions among it: they are for measuring only. An answer that is called inconsistent without a
span, as some of SummEdits are, says nothing of its characters: such rows are left out, and how many is said.
`hub:NAME` or `hub:NAME:SPLIT` in place of a file is a hub dataset whose rows have one of these forms.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]

HUB = "hub:"


@dataclass(frozen=True)
class Example:
    """An answer to a query over a context. kinds: how each span was made where it is synthetic, else empty."""

    id: str
    context: str
    query: str
    answer: str
    spans: tuple[Span, ...] = ()
    task: str = ""
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for start, end in self.spans:
            if not 0 <= start < end <= len(self.answer):
                raise ValueError(
                    f"example {self.id!r}: expected spans within 0..{len(self.answer)}, got {(start, end)}"
                )


def digest(text: str) -> int:
    """A number below 2**64 that depends on `text` alone, evenly spread: what is drawn by it is drawn everywhere alike."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big")


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON lines file, gzipped if its name ends in .gz. Raises ValueError with the line."""
    return (row for _, row in _numbered_rows(path))


def read_contexts(path: str | Path) -> Iterator[str]:
    """The `context` of each row of a JSON lines file. Raises ValueError with the line where it is no text."""
    for number, row in _numbered_rows(path):
        yield _text(row, "context", f"{path}:{number}")


def _numbered_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: expected a JSON object, got {line[:60]!r}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: expected a JSON object, got {type(row).__name__}")
            yield number, row


def hub_rows(source: str) -> Iterator[dict[str, Any]]:
    """The rows of `hub:NAME` or `hub:NAME:SPLIT` (default: train). Raises ImportError without `datasets`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            f"{source}: expected the package datasets for hub data, found none; pip install 'lettuceprevent[data]'"
        ) from error
    name, _, split = source.removeprefix(HUB).partition(":")
    yield from (dict(row) for row in load_dataset(name, split=split or "train"))


def load_examples(
    paths: str | Path | Sequence[str | Path], *, say: Callable[[str], None] = print
) -> list[Example]:
    """The examples of one file (or hub dataset) or several, in order. Raises ValueError for rows of an unknown
    form. say: where it goes how many rows of each were left out, if any (`without_spans`)."""
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    examples: list[Example] = []
    for path in several:
        hub = str(path).startswith(HUB)
        left = 0
        for number, row in enumerate(hub_rows(str(path)), 1) if hub else _numbered_rows(path):
            if without_spans(row):
                left += 1
            else:
                examples.append(example_of(row, f"{Path(path).name}:{number}"))
        if left:
            say(f"{path}: {left} inconsistent answers without a span left out")
    return examples


def without_spans(row: Mapping[str, Any]) -> bool:
    """Whether a row in SummEdits' form calls its answer inconsistent and does not say where."""
    other = any(key in row for key in ("mentions", "spans", "labels"))
    return not other and not row.get("consistent", True) and not row.get("diff_spans")


def data_hash(examples: Sequence[Example]) -> str:
    """A hash of examples and their order."""
    return hashlib.sha256(repr(list(examples)).encode("utf-8", "replace")).hexdigest()[:16]


def example_of(row: Mapping[str, Any], name: str = "row") -> Example:
    """The example of one row. name: what errors call it, and its id where it has none.

    Raises ValueError for a row of an unknown form, or one that is inconsistent without a span.
    """
    context, answer = _text(row, "context", name), _text(row, "answer", name)
    if "mentions" in row:
        raise ValueError(f"{name}: expected training data, got number mentions, which are for measuring only")
    if "spans" in row:
        marked = row["spans"]
    elif "labels" in row:
        marked = row["labels"]
    elif "consistent" in row:
        if without_spans(row):
            raise ValueError(f"{name}: expected 'diff_spans' of an inconsistent answer, got none")
        marked = [] if row["consistent"] else row["diff_spans"]
    else:
        raise ValueError(f"{name}: expected 'spans', 'labels' or 'consistent', got {', '.join(sorted(row))}")
    return Example(
        str(row.get("id") or name),
        context,
        row.get("query") or "",
        answer,
        merged(_span(item, name) for item in marked),
        row.get("task_type") or row.get("task") or "",
    )


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch or overlap as one."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return tuple(out)


def _text(row: Mapping[str, Any], key: str, name: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected {key!r} to be text, got {type(value).__name__}")
    return value


def _span(item: Any, name: str) -> Span:
    pair = (item.get("start"), item.get("end")) if isinstance(item, Mapping) else tuple(item)
    if len(pair) != 2 or not all(isinstance(at, int) for at in pair):
        raise ValueError(f"{name}: expected a span as [start, end] or with 'start' and 'end', got {item!r}")
    return int(pair[0]), int(pair[1])
