"""What the tests of the evaluation share: a tiny host whose random answers hold many digits, prompts for it,
and lines of runs that were never generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from fakes import digit_runs, make_llama, make_tokenizer

from lettuceprevent.evaluation.evaluate import EvaluatedHost
from lettuceprevent.evaluation.prompts import read_prompts
from lettuceprevent.evaluation.runs import FORMAT, ShardWriter, text_hash

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."


def tiny_host() -> EvaluatedHost:
    tokenizer = make_tokenizer()
    model = make_llama(len(tokenizer))
    with torch.no_grad():  # tokens with digits get a push
        for token in range(len(tokenizer)):
            if digit_runs(tokenizer.decode([token])):
                model.lm_head.weight[token] *= 1.5
    return EvaluatedHost(model, tokenizer, "tiny")


def write_prompts(path: Path, count: int = 4) -> Path:
    rows = [
        {
            "id": f"p{at}",
            "query": f"What of {2000 + at}?",
            "context": f"{CONTEXT} Then {500 + at}.",
            "task_type": "QA",
        }
        for at in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tiny_prompts(folder: Path, count: int = 4) -> Any:
    return read_prompts(write_prompts(folder / "prompts.jsonl", count))


def make_line(
    prompt: str,
    arm: str,
    answer: str,
    *,
    context: str = CONTEXT,
    query: str = "",
    prevention: dict[str, Any] | None = None,
    seconds: float = 1.0,
    log_prob: float = -0.5,
    decoding: dict[str, Any] | None = None,
    interventions: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A line as evaluate() writes it; each character of the answer is an id."""
    if arm != "plain" and prevention is None:
        prevention = {"detector_type": "number"}
    ids = [ord(char) for char in answer]
    report = None
    if prevention is not None:
        report = {
            "counters": {
                "steps": len(ids),
                "checked": len(ids),
                "penalised": 0,
                "forced": 0,
                "dead": 0,
                "errors": 0,
            },
            "interventions": interventions or [],
            "retractions": [],
            "sequences": [{"row": 0, "unfinished": False, "dead": 0, "word_leaks": 0}],
        }
    return {
        "format": FORMAT,
        "prompt": {
            "id": prompt,
            "sha256": text_hash(context + query),
            "task": "QA",
            "passages": [context],
            "query": query,
            "text": f"{query} {context}\n",
            "tokens": 20,
        },
        "arm": arm,
        "prevention": prevention,
        "decoding": decoding
        or {"max_new_tokens": 40, "num_beams": 1, "do_sample": False, "seed": 0, "batch": 1},
        "host": {"id": "tiny", "dtype": "float32", "device": "cpu"},
        "versions": {"lettuceprevent": "0"},
        "data": {"source": "x", "sha256": "0"},
        "answer": {
            "text": answer,
            "ids": ids,
            "pieces": list(answer),
            "cut": False,
            "log_probs": [log_prob] * len(ids),
            "top_probs": [0.5] * len(ids),
            "top": [],
        },
        "report": report,
        "timings": {"seconds": seconds, "batch": 1, "steps": len(ids), "latency": None, "written": ""},
    }


def write_run(path: Path, lines: list[dict[str, Any]]) -> Path:
    with ShardWriter(path) as writer:
        writer.append(lines)
    return path
