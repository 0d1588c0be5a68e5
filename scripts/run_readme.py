"""Runs the Python snippets of README.md as they are written, in order and in one namespace.

    python scripts/run_readme.py [FILE ...]

The working folder is a temporary one that looks like a checkout beside a model hub: `custom_generate` and
`docs` are the repository's, and where SmolLM2-135M-Instruct was fetched, its hub id is a folder there, so
that `from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")` reads the local copy.

A snippet is a block fenced with ```python. Right before it, `<!-- needs-hub: reason -->` has it skipped and
the reason printed. In a snippet, `# -> text` (behind a statement or on a line of its own) says that this
text is printed; several are expected in order, `...` stands for anything, runs of blanks count as one. Exit
status 1 if a snippet raises or prints something else.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import os
import re
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lettuceprevent.assets import HOST, HOST_HUB_ID, asset_path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when a snippet imports transformers
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
NEEDS_HUB = re.compile(r"<!--\s*needs-hub:\s*(.*?)\s*-->\s*\Z", re.DOTALL)
EXPECTED = re.compile(r"#\s*->\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    line: int  # of the first line of code, from 1
    code: str
    skip: str | None  # the reason


def snippets(text: str) -> list[Snippet]:
    found = []
    for match in FENCE.finditer(text):
        reason = NEEDS_HUB.search(text[: match.start()])
        line = text.count("\n", 0, match.start(1)) + 1
        found.append(Snippet(line, match[1], reason[1] if reason else None))
    return found


def missing(code: str, printed: str) -> str | None:
    """The first text after `# ->` that was not printed after those before it, or None."""
    printed = " ".join(printed.split())
    at = 0
    for expected in EXPECTED.findall(code):
        parts = [re.escape(" ".join(part.split())) for part in expected.split("...")]
        match = re.compile(".*?".join(parts)).search(printed, at)
        if match is None:
            return str(expected)
        at = match.end()
    return None


class Tee(io.StringIO):
    """Keeps what is printed and shows it."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        return super().write(text)


def run(snippet: Snippet, name: str, namespace: dict[str, Any]) -> str | None:
    """Runs one snippet; what went wrong, or None."""
    source = "\n" * (snippet.line - 1) + snippet.code  # so that line numbers are those of the file
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    printed = Tee()
    try:
        code = compile(source, name, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
    except (Exception, SystemExit):
        return traceback.format_exc()
    expected = missing(snippet.code, printed.getvalue())
    return None if expected is None else f"expected it to print {expected!r}, got {printed.getvalue()!r}"


@contextlib.contextmanager
def folder() -> Any:
    """The temporary working folder (see the module's docstring)."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for part in ("custom_generate", "docs"):
            if (ROOT / part).is_dir():
                (place / part).symlink_to(ROOT / part)
        host = asset_path(HOST)
        if host is not None:
            (place / HOST_HUB_ID).parent.mkdir(parents=True)
            (place / HOST_HUB_ID).symlink_to(host)
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "README.md"], metavar="FILE")
    failures = 0
    for path in [file.resolve() for file in parser.parse_args().files]:
        if not path.is_file():
            print(f"{path.name}: no such file")
            failures += 1
            continue
        ran = skipped = 0
        namespace: dict[str, Any] = {"__name__": "__readme__"}
        with folder():
            for snippet in snippets(path.read_text(encoding="utf-8")):
                name = f"{path.name}:{snippet.line}"
                if snippet.skip is not None:
                    skipped += 1
                    print(f"-- {name} skipped, it needs a model hub: {snippet.skip}", flush=True)
                    continue
                print(f"-- {name}", flush=True)
                start = time.monotonic()
                problem = run(snippet, path.name, namespace)
                ran += 1
                if problem is None:
                    print(f"-- {name} ok ({time.monotonic() - start:.1f} s)", flush=True)
                else:
                    failures += 1
                    print(f"-- {name} FAILED\n{problem}", flush=True)
        print(f"{path.name}: {ran} snippets run, {skipped} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
