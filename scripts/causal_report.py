"""The measurements of the causal detector as one page: `results/causal_*.json` → `results/causal.md`.

    python scripts/causal_report.py

Only copies figures; what is not measured is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from _causal import ROOT

RESULTS = ROOT / "results"


def read(name: str) -> dict[str, Any] | None:
    """A result file, or None where it has not been made."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text("utf-8")) if file.is_file() else None
    return found


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)] + [""]


def made_by(document: dict[str, Any]) -> str:
    versions, hardware = document["versions"], document["hardware"]
    return (
        f"`{document['command']}` at {document['commit']}, torch {versions['torch']}, transformers "
        f"{versions['transformers']}, {hardware['cores']} cores ({hardware['processor']}), "
        f"{hardware['threads'] or 'all'} threads."
    )


def parity() -> list[str]:
    """Cached scores against full passes."""
    runs: dict[str, dict[str, Any]] = {}  # release of transformers -> modes
    sources = []
    for file in sorted(RESULTS.glob("causal_parity*.json")):
        found = json.loads(file.read_text("utf-8"))
        runs.setdefault(found["versions"]["transformers"], {}).update(found["modes"])
        sources.append(f"- {made_by(found)}")
    names = list(dict.fromkeys(name for modes in runs.values() for name in modes))
    body = []
    for name in names:
        size, rest = name.split("_", 1)
        alignment, walk = rest.rsplit("_", 1)
        cells = []
        for modes in runs.values():
            mode = modes.get(name)
            cells.append("" if mode is None else f"{mode['max_abs_diff']:.0e} ({mode['cases']})")
        body.append([size, alignment, walk, *cells])
    head = ["checkpoint", "alignment", "requests"]
    lines = ["## The same scores as a full forward pass", ""]
    lines += ["Largest difference of a probability, in float32 (cases; 0 is below 5e-7).", ""]
    lines += table([*head, *(f"transformers {release}" for release in runs)], body)
    return [*lines, *sources, ""]


def bench() -> list[str]:
    """What a step costs."""
    found = read("causal_bench")
    if found is None:
        return []
    precisions = [name for name in found["comparison"] if isinstance(found["comparison"][name], dict)]
    compared = found["comparison"]
    lines = ["## A checked step", ""]
    lines += [
        f"Ten candidates at {compared['tokens']} tokens. One full float32 forward pass of transformers' own model takes "
        f"{compared['full_forward_ms']:.0f} ms on the same threads; medians of {compared['rounds']} interleaved rounds. "
        f"A skipped step takes {found['skip_ms']:.2f} ms. Load average before: {found['load_average_before']:.1f}.",
        "",
    ]
    body = []
    for name in precisions:
        parts, figures = found["where_it_goes_ms"][name], compared[name]
        growth = found["growth_50_to_1000" if name == "float32" else "growth_50_to_1000_reduced"]
        body.append(
            [
                name,
                f"{figures['step_ms']:.1f}",
                f"{figures['speedup']:.1f} ({figures['speedup_p10']:.1f} to {figures['speedup_p90']:.1f})",
                f"{100 * growth:.0f} %",
                f"{found['weights_read_once_ms'][name]:.1f}",
                *(f"{parts[kind]:.1f}" for kind in parts),
            ]
        )
    kinds = [kind.replace("_", " ") for kind in found["where_it_goes_ms"]["float32"]]
    head = ["precision", "step, ms", "times faster (p10 to p90)", "from 50 to 1,000 answer tokens"]
    lines += table([*head, "reading the weights once, ms", *(f"of it {kind}, ms" for kind in kinds)], body)
    reduced = found["reduced_accuracy"]
    lines += [
        f"Reduced precision against float32, {reduced['candidates']:,} candidates: probabilities differ by at most "
        f"{reduced['max_abs_diff']:.4f}; {100 * reduced['verdicts_changed']:.2f} % of verdicts at the 94th percentile "
        f"change. One token's keys and values take {found['bytes_per_node']:,} bytes.",
        "",
    ]
    tables = [(name, found[f"steps_ms_{name}"]) for name in precisions if f"steps_ms_{name}" in found]
    if tables:
        keys = list(tables[0][1])
        body = [[key.replace("_", " "), *(f"{each.get(key, 0):.0f}" for _, each in tables)] for key in keys]
        lines += [
            "Milliseconds per step, 1,050 tokens where no other context is named; a first step reads its context.",
            "",
        ]
        lines += table(["", *(name for name, _ in tables)], body)
    return [*lines, made_by(found), ""]


def generations() -> list[str]:
    """Whole generations beside plain decoding."""
    found = read("causal_e2e")
    if found is None:
        return []
    lines = ["## Whole generations", ""]
    lines += [
        f"SmolLM2-135M-Instruct in float32, {found['prompts']} prompts of 900 tokens, {found['new_tokens']} new tokens "
        f"each; plain decoding takes {found['plain_seconds']:.1f} s. Ratios are paired, medians over prompts. They "
        "include the detector's reading of the context.",
        "",
    ]
    body, seconds = [], found["seconds"]
    for name, ratio in found["time_ratio"].items():
        precision, threshold = name.rsplit("_", 1)
        paired = [ours / plain for ours, plain in zip(seconds[name], seconds["plain"], strict=True)]
        low, high = min(paired), max(paired)
        rate = f"{100 * found['skip_rate'][name]:.0f} %"
        body.append([precision, threshold, f"{ratio:.2f}", f"{low:.2f} to {high:.2f}", rate])
    lines += table(["precision", "skip_threshold", "time, plain = 1", "range", "steps skipped"], body)
    if "load_average_before" in found:
        loads = ", ".join(f"{each:.1f}" for each in found["load_average_before"])
        lines += [f"Load average before each prompt (2 is this run alone): {loads}.", ""]
    return [*lines, made_by(found), ""]


def main() -> int:
    lines = [
        "# The causal detector, measured",
        "",
        "Random weights of the published 68M shape (and a tiny checkpoint): scores and costs do not depend on training.",
        "",
    ]
    Path(RESULTS / "causal.md").write_text(
        "\n".join([*lines, *parity(), *bench(), *generations()]), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
