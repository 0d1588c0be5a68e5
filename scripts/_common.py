"""What the measurement scripts share: data, tokenizers, and the JSON document with its provenance.

Contract: a script prints figures for people and ends with one JSON document on the last line; `finish` writes
the same document, indented, where `--out` says.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lettuceprevent.assets import asset_path

#: the tokenizers of the contracts on numbers
TOKENIZERS = ("smollm2", "mistral", "llama31", "llama2", "qwen3", "gptoss")


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments all measurement scripts take: --data and --out."""
    result = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    result.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder with the data files"
    )
    result.add_argument("--out", type=Path, help="write the JSON document here as well")
    return result


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of `name`.jsonl.gz; exits with a message where the file is not there."""
    path = folder / f"{name}.jsonl.gz"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; pass the folder that holds it with --data")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def tokenizer(name: str) -> Any:
    """A real tokenizer from the asset cache; exits with a message where it has not been fetched."""
    from transformers import AutoTokenizer

    folder = asset_path(f"tokenizers/{name}")
    if folder is None:
        raise SystemExit(f"tokenizer {name}: not fetched yet; run `python scripts/get_assets.py {name}`")
    return AutoTokenizer.from_pretrained(folder)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of `values`; nan of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def provenance(data: Path, files: Iterable[str]) -> dict[str, Any]:
    """Commit, versions, command, data hash and hardware, as every result file names them."""
    hashes = {}
    for name in files:
        path = data / f"{name}.jsonl.gz"
        hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    versions = {"python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy", "llguidance"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    # where things lie on one machine is nobody else's business
    given = [f"…/{Path(word).name}" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    command = ["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *given]
    return {
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "lettuceprevent")),
        "versions": versions,
        "command": " ".join(command),
        "data_sha256": hashes,
        "hardware": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def finish(document: dict[str, Any], out: Path | None) -> None:
    """Print `document` as the last line, and write it to `out` where given."""
    document = _finite(document)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        out.write_text(text + "\n", encoding="utf-8")
    sys.stdout.flush()
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
