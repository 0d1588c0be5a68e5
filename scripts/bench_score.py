"""How long scoring stored answers takes, and how much memory: a run of real answers, scored in a process of its own.

    python scripts/bench_score.py --out results/bench_score.json

The answers are those of host_answers, put into a run as if five arms had given them (the first to a prompt is `plain`);
nothing is generated. Sizes are answers; memory is the scoring process's largest resident set, all it imports included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import ROOT, finish, parser, provenance, rows

from lettuceprevent.evaluation.runs import FORMAT, ShardWriter, text_hash

FILES = ("host_answers",)
_CHILD = """
import json, resource, sys, time
began = time.perf_counter()
from lettuceprevent.evaluation.score import score_run
imported = time.perf_counter()
found = score_run(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - began, "importing": imported - began,
                  "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                  "answers": sum(arm["answers"] for arm in found["arms"].values())}))
"""


def lines(data: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The answers as lines; an id is a word, and its probability is one half."""
    arms: Counter[str] = Counter()
    for row in data:
        key = text_hash(f"{row['query']}\0{row['context']}")
        arm = ("plain", "second", "third", "fourth", "fifth")[arms[key] % 5]
        prompt = f"{key}-{arms[key] // 5}"
        arms[key] += 1
        pieces = row["answer"].split(" ")
        pieces = [piece if at == 0 else f" {piece}" for at, piece in enumerate(pieces)]
        size = len(pieces)
        yield {
            "format": FORMAT,
            "prompt": {
                "id": prompt,
                "sha256": key,
                "task": row["task_type"],
                "passages": [row["context"]],
                "query": row["query"],
                "text": f"{row['query']}\n\n{row['context']}\n",
                "tokens": 0,
            },
            "arm": arm,
            "prevention": None,
            "decoding": {},
            "host": {},
            "versions": {},
            "data": {},
            "answer": {
                "text": row["answer"],
                "ids": list(range(size)),
                "pieces": pieces,
                "cut": False,
                "log_probs": [-0.69315] * size,
                "top_probs": [0.5] * size,
                "top": [],
            },
            "report": None,
            "timings": {"seconds": 1.0, "batch": 1, "steps": size, "latency": None, "written": ""},
        }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[250, 500, 1000])
    options = arguments.parse_args()
    data = rows(options.data, "host_answers")
    data.sort(key=lambda row: (row["context"], row["query"]))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            path = Path(folder) / f"{size}.jsonl"
            with ShardWriter(path) as writer:
                writer.append(lines(data[:size]))
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", _CHILD, str(path)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            )
            figures = json.loads(done.stdout)
            figures["wall_seconds"] = time.perf_counter() - began
            figures["megabytes_on_disk"] = path.stat().st_size / 2**20
            found.append(figures)
            print(size, {key: round(value, 2) for key, value in figures.items()}, flush=True)
    finish({"runs": found, "provenance": provenance(options.data, FILES)}, options.out)


if __name__ == "__main__":
    main()
