"""How far six real hosts' tokens are from the causal detector's training, on real answers: table and picture.

python scripts/alignment_report.py      # writes results/alignment.md, .json and .png
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from _common import ROOT, TOKENIZERS, finish, parser, provenance, rows, tokenizer

from lettuceprevent.align import Agreement, HostReport, align


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def both(found: Agreement | None) -> str:
    return "–" if found is None else f"{percent(found.precision)} / {percent(found.recall)}"


def table(reports: list[HostReport]) -> str:
    lines = [
        "| host | bytes come back | tokens per word | digits are cut | cuts in words, precision / recall "
        "| cuts in numbers | other ids than in training: host_chunks | of these, in numbers | direct | use |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.host} | {percent(each.round_trip)} | {each.tokens_per_word:.2f} | {each.number_pattern} "
        f"({each.number_example.replace('|', '·')}) | {both(each.words)} | {both(each.numbers)} "
        f"| {percent(each.host_chunks_vs_training)} | {percent(each.numbers_host_chunks_vs_training)} "
        f"| {percent(each.direct_vs_training)} | {each.recommended} |"
        for each in reports
    ]
    return "\n".join(lines)


def picture(reports: list[HostReport], path: Any) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.6))
    width = 0.27
    series = (
        ("host_chunks, all text", "host_chunks_vs_training", "#4477aa"),
        ("host_chunks, numbers", "numbers_host_chunks_vs_training", "#ee6677"),
        ("direct, all text", "direct_vs_training", "#bbbbbb"),
    )
    for index, (label, key, color) in enumerate(series):
        places = [at + (index - 1) * width for at in range(len(reports))]
        bars = axis.bar(
            places, [100 * getattr(each, key) for each in reports], width, label=label, color=color
        )
        axis.bar_label(bars, fmt="%.1f", fontsize=7)
    axis.set_xticks(range(len(reports)), [each.host for each in reports])
    axis.set_ylabel("% of bytes")
    axis.set_title("Text whose detector ids differ from those of training", fontsize=10)
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--texts", type=int, default=200)
    given = options.parse_args()
    answers = [row["answer"] for row in rows(given.data, "ragtruth_test")][: given.texts]
    detector, reference = tokenizer("modernbert"), tokenizer("llama31")
    reports = []
    for name in TOKENIZERS:
        reports.append(
            align(tokenizer(name), detector, reference_tokenizer=reference, texts=answers, name=name)
        )
        print(reports[-1].summary(), flush=True)
    document = {
        "script": "alignment_report",
        "texts": len(answers),
        "hosts": [asdict(each) for each in reports],
        **provenance(given.data, ["ragtruth_test"]),
    }
    results = ROOT / "results"
    picture(reports, results / "alignment.png")
    text = f"""# Host tokens against the causal detector's training

The detector was trained on Llama-3.1 tokens, each tokenised on its own. This is how far other hosts are from that, on
{len(answers)} answers of RAGTruth's test split; figures in per cent, of bytes of text where nothing else is said.

{table(reports)}

![share of text with other ids](alignment.png)

`reference_chunks` re-cuts the answer with the training tokenizer and so has none of these differences, at the price of
scoring a word's end again when it grows. Made by `{document["command"]}` at
{document["commit"]}, figures in `alignment.json`.
"""
    (results / "alignment.md").write_text(text, encoding="utf-8")
    finish(document, given.out or results / "alignment.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
