"""The table of examples in docs/literals.md: (context, answer, the literal that is not supported or None)."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "literals.md"
_ROW = re.compile(r"\| (?P<context>.*?) \| (?P<answer>.*?) \| (?P<verdict>supported|unsupported: .*?) \|")


def examples() -> list[tuple[str, str, str | None]]:
    rows = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        match = _ROW.fullmatch(line.strip())
        if match:
            wrong = match["verdict"].partition(": ")[2] or None
            rows.append((match["context"], match["answer"].replace("\\n", "\n"), wrong))
    assert len(rows) >= 60
    return rows
