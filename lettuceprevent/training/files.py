"""Small files that another run reads: what is done, and of what.

Contract: a file is replaced by one rename, so that a run that was killed leaves the old one or the new one whole.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write `text` aside and put it in the place of `path`, whose folder must be there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
