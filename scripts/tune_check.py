"""Tuning on a real host: how long a grid takes, what it finds, and whether re-simulated answers are the real ones.

    python scripts/tune_check.py --out results/tune.json      # also writes tune.md and tune.png beside it

SmolLM2-135M-Instruct, prompts of host_answers (as many of each task), greedy. The grid is timed as a whole.
Then, at two grid points, some prompts are generated again without re-simulation and compared token by token.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from _common import asset_path, finish, parser, provenance

from lettuceprevent.evaluation.evaluate import EvaluatedHost
from lettuceprevent.evaluation.prompts import chosen, read_prompts
from lettuceprevent.evaluation.recorded import Point
from lettuceprevent.evaluation.tune import Tuner, document, make_profile, plot, table, tune

HOST = "smollm2-135m-instruct"
SKIPS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def compared(tuner: Tuner, prompts: Any, skips: list[float], minutes: float) -> dict[str, Any]:
    """Answers with and without re-simulation at some points; the other points of the grid are in it, since
    they decide what is recorded."""
    real = Tuner(tuner.host, tuner.options, tuner.max_new_tokens, simulate=False)
    grid, points = [Point(skip) for skip in SKIPS], [Point(skip) for skip in skips]
    rows = []
    began = time.monotonic()
    for prompt in prompts:
        if time.monotonic() - began > 60 * minutes:
            break
        found, generated = tuner.answers(prompt, grid), real.answers(prompt, points)
        for point in points:
            a, b = found[point], generated[point]
            rows.append(
                {
                    "prompt": prompt.id,
                    "skip_threshold": point.skip_threshold,
                    "simulated": a.simulated,
                    "same_text": a.text == b.text,
                    "same_unsupported": a.unsupported == b.unsupported,
                    "time_ratio": a.cost.whole / a.cost.host if a.cost else None,
                    "real_time_ratio": b.cost.whole / b.cost.host if b.cost else None,
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    simulated = [row for row in rows if row["simulated"]]
    return {
        "prompts": len({row["prompt"] for row in rows}),
        "points": skips,
        "answers": len(rows),
        "simulated": len(simulated),
        "simulated_same_text": sum(row["same_text"] for row in simulated),
        "same_text": sum(row["same_text"] for row in rows),
        "rows": rows,
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--per-task", type=int, default=10)
    arguments.add_argument("--max-prompt-tokens", type=int, default=1000)
    # at 160 more than half of this host's plain answers loop, and no setting may be recommended
    arguments.add_argument("--max-new-tokens", type=int, default=96)
    arguments.add_argument("--policy", default="retract")
    arguments.add_argument("--compare", type=int, default=10, help="prompts that are generated again")
    arguments.add_argument("--points", type=float, nargs=2, default=[0.7, 0.95])
    arguments.add_argument("--budget", type=float, default=1.2)
    arguments.add_argument(
        "--minutes", type=float, default=20, help="begin no further prompt of the grid after"
    )
    arguments.add_argument(
        "--compare-minutes", type=float, default=10, help="compare no further prompt after"
    )
    options = arguments.parse_args()
    folder = asset_path(HOST)
    if folder is None:
        raise SystemExit(f"{HOST}: not fetched yet; run `python scripts/get_assets.py {HOST}`")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    host = EvaluatedHost(model, AutoTokenizer.from_pretrained(folder), HOST)
    prompts = chosen(
        read_prompts(options.data / "host_answers.jsonl.gz"),
        per_task=options.per_task,
        longest=options.max_prompt_tokens,
        length=host.length,
    )
    tuner = Tuner(host, {"on_unsupported": options.policy}, options.max_new_tokens)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    began = time.monotonic()
    tuned = tune(
        tuner,
        prompts.prompts,
        [Point(skip) for skip in SKIPS],
        budget=options.budget,
        stop_after=60 * options.minutes,
        say=say,
    )
    minutes = (time.monotonic() - began) / 60
    text = table(tuned, options.budget)
    print(text)
    result: dict[str, Any] = {
        **provenance(options.data, ["host_answers"]),
        "minutes": round(minutes, 2),
        "budget": options.budget,
        "grid": document(tuner, tuned, prompts),
    }
    if options.out is not None:
        plot(tuned, options.out.with_suffix(".png"), options.budget)
        if tuned.chosen is not None:
            make_profile(tuner, tuned, prompts, options.budget).save(options.out.with_suffix(".profile.json"))
    step = max(1, len(prompts.prompts) // max(1, options.compare))
    again = prompts.prompts[::step][: options.compare]
    result["comparison"] = compared(tuner, again, list(options.points), options.compare_minutes)
    if options.out is not None:
        options.out.with_suffix(".md").write_text(page(result, text), encoding="utf-8")
    finish(result, options.out)


def page(result: dict[str, Any], grid: str) -> str:
    """The result for people."""
    found, compare = result["grid"], result["comparison"]
    prompts, points = len(found["prompts"]), len(found["points"])
    threads = result["hardware"]["threads"]
    where = " and ".join(f"{point:g}" for point in compare["points"])
    return f"""# Tuning `skip_threshold`: SmolLM2-135M-Instruct

Made by `{result["command"]}`; commit, versions, data hash and hardware are in `tune.json`.

{prompts} prompts, {points} grid points: {found["answers"]} answers from {found["generations"]} guarded generations
and {prompts} plain ones, in {result["minutes"]:.1f} minutes (threads: {threads}). Unsupported: digit forms
that the independent checker does not find supported. Time: over the host's own for the same ids.

{grid}

![unsupported content against time](tune.png)

## Re-simulated against generated

At `skip_threshold` {where}, {compare["prompts"]} prompts were generated again: {compare["same_text"]} of
{compare["answers"]} answers are the same, character by character; of the {compare["simulated"]} that had been
re-simulated, {compare["simulated_same_text"]}.
"""


if __name__ == "__main__":
    main()
