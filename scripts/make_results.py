"""results/RESULTS.md from the JSON documents beside it.

    python scripts/make_results.py            # write it
    python scripts/make_results.py --check    # exit status 1 where it is out of date

Every figure in the page comes from a document; text here only says what the columns are. A document that is not there
yet has no section.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = ROOT / "results"

from lettuceprevent.evaluation.score import table

Document = Mapping[str, Any]


def detectors(found: Document) -> list[str]:
    """Numbers by label, and against spans."""
    lines = [
        "The number detector as it works inside generation, and the independent checker on the finished answer;",
        "strict counts derivable and rounded numbers as unsupported, as the detector does. Intervals are 95 % bootstrap",
        "intervals over answers.",
        "",
        "Numbers that a reader judged (`number_mentions`), share flagged:",
        "",
    ]
    judges = list(found["number_mentions"])
    rows = []
    for label in found["number_mentions"][judges[0]]["flagged"]:
        cells = [label.replace("_", " ")]
        for judge in judges:
            figures = found["number_mentions"][judge]["flagged"][label]
            cells.append(f"{figures['flagged']} of {figures['of']}, {_share(figures['share'])}")
        rows.append(cells)
    lines += _table(["label", *judges], rows)
    for name, title in (
        ("ragtruth_test", "Human spans (`ragtruth_test`)"),
        ("host_answers", "Spans of another detector, no truth (`host_answers`)"),
    ):
        part = found[name]
        tokens = part["tokens"]
        lines += [
            "",
            f"{title}, {part['answers']} answers. A number counts as wrong where it overlaps a span:",
            "",
        ]
        rows = [
            [judge, *(_value(figures[key]) for key in _PRF)] for judge, figures in part["numbers"].items()
        ]
        rows.append(["detector, all tokens", *(_value(tokens[key]) for key in _PRF)])
        rows += [
            [f"{judge}, characters", *(_value(figures["characters"][key]) for key in _PRF)]
            for judge, figures in part["spans"].items()
        ]
        lines += _table(["judge", *_PRF], rows)
        lines += [
            "",
            f"Of all {tokens['count']:,} tokens {tokens['labelled']:,} lie in spans, most of them not about numbers. "
            f"Average precision of the detector's yes or no {_number(tokens['average_precision'])}, recall at a span's "
            f"first token {_number(tokens['first_token_recall'])}, calibration error {tokens['calibration_error']:.3f}, "
            f"{tokens['ms_per_check']:.2f} ms a check (masks worked out anew for each answer).",
        ]
    return lines


def prevention(found: Document) -> list[str]:
    """Tables of `lettuceprevent score`."""
    lines = []
    for name, title in (("greedy", "Greedy decoding"), ("beam4", "Four beams")):
        if name not in found:
            continue
        part = found[name]
        decoding, host = part["decoding"], part["host"]
        lines += [
            f"{title}: {host['id']} ({host['dtype']}), {part['prompts']} of {part['wanted']} prompts, at most "
            f"{decoding['max_new_tokens']} new tokens, batches of {decoding['batch']}. Each arm differs from plain in "
            "prevention alone. The columns are explained in [docs/evaluation.md](../docs/evaluation.md#scoring).",
            "",
            table(part),
            "",
        ]
        tasks = sorted({task for arm in part["by_task"].values() for task in arm})
        rows = [
            [
                arm,
                *(
                    f"{by.get(task, {}).get('unsupported', 0)} of {by.get(task, {}).get('numbers', 0)} "
                    f"in {by.get(task, {}).get('answers', 0)} answers"
                    for task in tasks
                ),
            ]
            for arm, by in part["by_task"].items()
        ]
        lines += ["Unsupported numbers by task:", "", *_table(["arm", *tasks], rows), ""]
    return lines[:-1]


def eval_detectors(found: Document) -> list[str]:
    """Quality by detector and task, then the gate."""
    groups = list(next(iter(found["detectors"].values())))
    unsupported = found["detectors"]["entropy"]["all"]
    lines = [
        f"Each token of {unsupported['answers']} answers of other models (`ragtruth_test`), "
        f"{unsupported['unsupported']:,} of {unsupported['tokens']:,} marked as unsupported by people. F1 at the "
        "threshold on the detector's card, chosen on training contexts; best F1 picks its own on these answers and is "
        "an upper figure. Intervals are 95 % bootstrap intervals over answers.",
    ]
    for group in groups:
        rows = [
            [
                name,
                *(_value(each[group][key]) if key in each[group] else "" for key in _RANKED),
                _number(each[group]["best_f1"]),
            ]
            for name, each in found["detectors"].items()
        ]
        answers = next(iter(found["detectors"].values()))[group]["answers"]
        lines += [
            "",
            f"{group} ({answers} answers):",
            "",
            *_table(["score", "AUROC", "average precision", "F1", "best F1"], rows),
        ]
    gate = found["gate"]
    shares = [share for share in gate["share_of_steps"] if round(100 * share) in (5, 10, 20, 40, 60, 80)]
    for name, part in gate.items():
        if name == "share_of_steps":
            continue
        rows = [
            [signal, *(f"{curve[gate['share_of_steps'].index(share)]:.0%}" for share in shares)]
            for signal, curve in part["recall"].items()
        ]
        lines += [
            "",
            f"The gate: of the {part['tokens']:,} {name}, the share within the steps that are checked, if the steps "
            "are chosen by a signal:",
            "",
            *_table(["chosen by", *(f"{share:.0%} of the steps" for share in shares)], rows),
        ]
        less = next((value for key, value in part.items() if key.startswith("probe_less")), None)
        if less is not None:
            lines += ["", f"At 20 % the probe has {_points(less)} more than `skip_threshold`."]
    return lines


def _points(value: Mapping[str, float]) -> str:
    return f"{100 * value['value']:.1f} points ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def bench_probe(found: Document) -> list[str]:
    """One sentence, and one on growth."""
    ratio, passes = found["ratio"], found["forward_passes"]
    first, last = found["first_quarter"], found["last_quarter"]
    return [
        f'`detector_type="probe"` ({found["probe"]} probe) on {found["host"]} against plain decoding, '
        f"{found['pairs']} pairs of {found['new_tokens']} tokens in one run: {ratio['median']:.3f} times the time "
        f"({ratio['p10']:.3f} to {ratio['p90']:.3f}, 10th to 90th percentile); first quarter of the "
        f"tokens {first['median']:.3f}, last quarter {last['median']:.3f}. Forward passes "
        f"{passes['probe'][0]} and {passes['plain'][0]}; the processor takes "
        f"{found['processor_us_per_step']:.0f} µs of the {found['plain_ms_per_token']:.0f} ms of a token."
    ]


def kill_resume(found: Document) -> list[str]:
    """One sentence."""
    same = "the same lines as" if found["same"] else "**other lines than**"
    torn = sum(kill["torn"] for kill in found["moments"])
    return [
        f"A run killed with SIGKILL at {found['kills']} random moments ({found['hit_a_running_process']} hit a running "
        f"process, {torn} left a torn line) and taken up again gave {same} an undisturbed one: "
        f"{found['lines_after_resuming']} of {found['lines']}, {found['doubled']} doubled."
    ]


def bench_score(found: Document) -> list[str]:
    """Seconds and memory by size."""
    rows = [
        [
            run["answers"],
            f"{run['seconds']:.1f}",
            f"{run['memory_mb']:.0f}",
            f"{run['megabytes_on_disk']:.1f}",
        ]
        for run in found["runs"]
    ]
    return _table(["answers scored", "seconds", "largest resident set, MB", "run on disk, MB"], rows)


SECTIONS: dict[str, tuple[str, Callable[[Document], list[str]]]] = {
    "prevention": ("Prevention on a real host", prevention),
    "generation": ("Trained detectors on a real host", prevention),
    "detectors": ("Detectors by replay", detectors),
    "eval_detectors": ("Detectors against people, token by token", eval_detectors),
    "bench_probe": ("What watching the host costs", bench_probe),
    "kill_resume": ("Killed and taken up again", kill_resume),
    "bench_score": ("Scoring stored answers", bench_score),
}
_RANKED = ("auroc", "average_precision", "f1")
_PRF = ("precision", "recall", "f1")


def page(folder: Path = RESULTS) -> str:
    """The page's text."""
    lines = [
        "# Results",
        "",
        "Written by `scripts/make_results.py` from the JSON documents in this folder.",
        "[README.md](README.md) says how those came about, [LOG.md](LOG.md) what did not work.",
    ]
    for name, (title, section) in SECTIONS.items():
        path = folder / f"{name}.json"
        if not path.is_file():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        made = document["provenance"]
        modified = ", with changes" if made["modified"] else ""
        lines += ["", f"## {title}", "", *section(document), ""]
        lines.append(f"`{made['command']}` at {made['commit']}{modified}; {made['hardware']['processor']}.")
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows: list[list[Any]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _value(value: Mapping[str, float]) -> str:
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _share(value: Mapping[str, float]) -> str:
    return f"{value['value']:.1%} ({value['low']:.1%} to {value['high']:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    options = parser.parse_args()
    path, text = RESULTS / "RESULTS.md", page()
    if not options.check:
        path.write_text(text, encoding="utf-8")
    elif not path.is_file() or path.read_text(encoding="utf-8") != text:
        sys.exit(
            f"{path.relative_to(ROOT)}: expected what scripts/make_results.py writes, got something else; run it"
        )


if __name__ == "__main__":
    main()
