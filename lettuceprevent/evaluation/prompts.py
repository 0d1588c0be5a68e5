"""Prompts for an evaluation, from a file or a data set of the hub.

Contract: a row needs a context; query, id and task are taken where they are there. RAGTruth's processed form
works as it is. Rows with the same query and context are one prompt, the first one. What is left out is
counted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .runs import text_hash

#: our name -> the names it may have in a row, the first that is there counts
FIELDS = {
    "id": ("id", "prompt_id", "source_id"),
    "context": ("passages", "context"),
    "query": ("query", "question"),
    "task": ("task_type", "task"),
}


@dataclass(frozen=True)
class Prompt:
    """What is asked, and the evidence it is asked about."""

    id: str
    passages: tuple[str, ...]
    query: str = ""
    task: str | None = None

    @property
    def text(self) -> str:
        """The passages joined by a blank line."""
        return "\n\n".join(self.passages)


@dataclass(frozen=True)
class Prompts:
    """Prompts and where they are from. sha256: of the file, or of the rows of a data set (16 digits)."""

    prompts: tuple[Prompt, ...]
    source: str
    sha256: str
    left_out: Mapping[str, int]


def read_prompts(path: Path, fields: Mapping[str, str] | None = None) -> Prompts:
    """Prompts from JSON lines, plain or gzipped (`.gz`). A row without a context raises ValueError."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"prompts: expected JSON lines in {str(path)!r}: {error}") from error
    prompts, left_out = _prompts(rows, fields or {}, path.name)
    return Prompts(prompts, path.name, hashlib.sha256(raw).hexdigest()[:16], left_out)


def hub_prompts(name: str, split: str = "test", fields: Mapping[str, str] | None = None) -> Prompts:
    """Prompts from a data set of the hub, for instance wandb/RAGTruth-processed. Needs the extra `data`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            "a data set of the hub needs the package datasets: pip install 'lettuceprevent[data]'"
        ) from error
    rows = [dict(row) for row in load_dataset(name, split=split)]
    prompts, left_out = _prompts(rows, fields or {}, name)
    content = json.dumps([[p.id, p.passages, p.query, p.task] for p in prompts])
    return Prompts(prompts, f"{name}:{split}", text_hash(content), left_out)


def chosen(
    found: Prompts,
    *,
    limit: int | None = None,
    per_task: int | None = None,
    longest: int | None = None,
    length: Any = None,
) -> Prompts:
    """The first prompts, in their order: at most `limit`, at most `per_task` of each task, none for which
    `length(prompt)` is more than `longest`."""
    kept: list[Prompt] = []
    tasks: Counter[str | None] = Counter()
    left_out = Counter(found.left_out)
    for prompt in found.prompts:
        if limit is not None and len(kept) >= limit:
            break
        if per_task is not None and tasks[prompt.task] >= per_task:
            continue
        if longest is not None and length(prompt) > longest:
            left_out["too long"] += 1
            continue
        tasks[prompt.task] += 1
        kept.append(prompt)
    return Prompts(tuple(kept), found.source, found.sha256, dict(left_out))


def _prompts(
    rows: Sequence[Mapping[str, Any]], fields: Mapping[str, str], source: str
) -> tuple[tuple[Prompt, ...], dict[str, int]]:
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise ValueError(f"fields: expected names among {', '.join(FIELDS)}, got {', '.join(unknown)}")
    prompts: dict[tuple[tuple[str, ...], str], Prompt] = {}
    ids: set[str] = set()
    repeated = 0
    for at, row in enumerate(rows, 1):
        value = {name: _field(row, fields.get(name), names) for name, names in FIELDS.items()}
        passages = _passages(value["context"], f"{source}, row {at}")
        query = str(value["query"] or "")
        if (passages, query) in prompts:
            repeated += 1
            continue
        name = str(value["id"] if value["id"] is not None else text_hash(f"{query}\0{passages}"))
        if name in ids:
            raise ValueError(f"{source}, row {at}: expected an id of its own, got {name!r} a second time")
        ids.add(name)
        task = None if value["task"] is None else str(value["task"])
        prompts[passages, query] = Prompt(name, passages, query, task)
    return tuple(prompts.values()), {"repeated": repeated} if repeated else {}


def _field(row: Mapping[str, Any], named: str | None, names: Iterable[str]) -> Any:
    return row.get(named) if named else next((row[name] for name in names if row.get(name) is not None), None)


def _passages(value: Any, where: str) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(item, str) for item in listed):
        raise ValueError(f"{where}: expected a context, a string or a list of strings, got {value!r:.60}")
    if not any(item.strip() for item in listed):
        raise ValueError(f"{where}: expected a context, got an empty one")
    return tuple(listed)
