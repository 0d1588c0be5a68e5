"""`lettuceprevent evaluate` killed with SIGKILL at random moments and taken up again, against an undisturbed run.

    python scripts/kill_resume.py --out results/kill_resume.json

SmolLM2, three arms, a few prompts. The process is killed --kills times, each after a random time since its start:
half of the kills may hit loading, half come after the first answer of that process. Then it is left to end. The lines of
the two runs must be the same but for their timings.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import ROOT, finish, parser, provenance

from lettuceprevent.assets import HOST_HUB_ID, host_id
from lettuceprevent.evaluation.runs import comparable, read_lines, shards

FILES = ("host_answers",)


def command(options: Any, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "lettuceprevent.cli", "evaluate", "--model", host_id(), "--name", HOST_HUB_ID,
        "--dtype", "float32", "--device", "cpu", "--prompts", str(options.data / "host_answers.jsonl.gz"),
        "--arms", "plain", "avoid", "retract", "--limit", str(options.prompts), "--max-prompt-tokens", "400",
        "--max-new-tokens", str(options.tokens), "--out", str(out),
    ]  # fmt: skip


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in shards(folder))


def killed(arguments: list[str], out: Path, draw: random.Random, late: bool) -> dict[str, Any]:
    """One process, killed after a random time: since its start, or since it wrote its first line."""
    before, began = size(out), time.monotonic()
    with subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while late and process.poll() is None and size(out) == before:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 4 if late else 10))
        process.send_signal(signal.SIGKILL)
        code = process.wait()
    return {
        "killed": code == -signal.SIGKILL,
        "after_s": time.monotonic() - began,
        "lines": sum(1 for _ in read_lines(out)),
        "torn": any(not path.read_bytes().endswith(b"\n") for path in shards(out) if path.stat().st_size),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=10)
    arguments.add_argument("--prompts", type=int, default=12)
    arguments.add_argument("--tokens", type=int, default=24)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    draw = random.Random(options.seed)
    kills: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        whole, torn = Path(folder) / "whole", Path(folder) / "torn"
        subprocess.run(command(options, whole), cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        for at in range(options.kills):
            kills.append(killed(command(options, torn), torn, draw, late=at % 2 == 1))
            print(f"kill {at + 1}: {kills[-1]}", flush=True)
        ended = subprocess.run(command(options, torn), cwd=ROOT, check=True, capture_output=True, text=True)
        print(ended.stderr[-300:], file=sys.stderr)
        a, b = ([comparable(line) for line in read_lines(path)] for path in (whole, torn))
        key = [(line["prompt"]["id"], line["arm"]) for line in b]
        same = sorted(a, key=str) == sorted(b, key=str)
    found = {
        "kills": len(kills),
        "hit_a_running_process": sum(kill["killed"] for kill in kills),
        "lines": len(a),
        "lines_after_resuming": len(b),
        "doubled": len(key) - len(set(key)),
        "same": same,
        "moments": kills,
    }
    print({name: value for name, value in found.items() if name != "moments"})
    finish({**found, "provenance": provenance(options.data, FILES)}, options.out)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
