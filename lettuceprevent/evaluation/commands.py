"""`lettuceprevent evaluate`, `score` and `tune` on the command line.

Contract: importing this module costs nothing; torch and scipy are loaded when a command runs. Results go to
stdout, progress to stderr. Exit status 0: done; 2: it could not be done, with one line that says why; for
`evaluate` 3: `--minutes` ran out before the last answer; for `tune` 1: no setting can be recommended.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..console import add_host_arguments, in_one_line, say

EXIT_UNFINISHED = 3


def add_evaluation_commands(commands: Any) -> None:
    """Add `evaluate`, `score` and `tune` to an argparse subparsers object."""
    _add_evaluate(commands)
    _add_score(commands)
    _add_tune(commands)


def _add_source(command: argparse.ArgumentParser, required: bool, note: str = "") -> None:
    """Where prompts come from."""
    source = command.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "--prompts", type=Path, metavar="FILE", help=f"JSON lines with id, query, context; .gz{note}"
    )
    source.add_argument("--dataset", metavar="ID", help="a data set of the hub (needs the extra `data`)")
    command.add_argument("--split", default="test", help="of the data set (default: test)")
    command.add_argument(
        "--fields", nargs="+", default=[], metavar="NAME=FIELD", help="where id, context, query, task are"
    )


def _source(options: argparse.Namespace) -> Any:
    """All prompts of the source that the arguments of `_add_source` name; None where they name none."""
    from .prompts import hub_prompts, read_prompts

    fields = dict(_pair(text) for text in options.fields)
    if options.prompts is not None:
        return read_prompts(options.prompts, fields)
    return hub_prompts(options.dataset, options.split, fields) if options.dataset else None


def add_prompt_arguments(command: argparse.ArgumentParser) -> None:
    """Where prompts come from, and which are taken."""
    _add_source(command, required=True)
    command.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    command.add_argument("--per-task", type=int, metavar="N", help="only the first N of each task")
    command.add_argument("--max-prompt-tokens", type=int, metavar="N", help="leave longer prompts out")


def chosen_prompts(options: argparse.Namespace, length: Callable[[Any], int]) -> Any:
    """The prompts that the arguments of `add_prompt_arguments` ask for."""
    from .prompts import chosen

    return chosen(
        _source(options),
        limit=options.limit,
        per_task=options.per_task,
        longest=options.max_prompt_tokens,
        length=length,
    )


def _add_evaluate(commands: Any) -> None:
    command = commands.add_parser(
        "evaluate",
        help="answer many prompts with and without prevention",
        description="Answer prompts under several arms, decoding alike, and keep every answer. A run that was "
        "interrupted goes on where it was.",
    )
    add_host_arguments(command)
    command.add_argument("--name", metavar="TEXT", help="what the run calls the model (default: --model)")
    add_prompt_arguments(command)
    command.add_argument("--out", type=Path, required=True, metavar="RUN", help="folder of the run")
    arms = command.add_mutually_exclusive_group()
    arms.add_argument(
        "--arms",
        nargs="+",
        default=["plain", "retract"],
        metavar="ARM",
        help="plain, avoid, substitute, retract, or NAME:option=value,... (default: plain retract)",
    )
    arms.add_argument("--arms-file", type=Path, metavar="FILE", help="arms as JSON: {NAME: {option: value}}")
    command.add_argument("--max-new-tokens", type=int, default=160, metavar="N")
    command.add_argument("--num-beams", type=int, default=1, metavar="N")
    command.add_argument(
        "--sample", action="store_true", help="sample; the seed follows from --seed and prompt"
    )
    command.add_argument("--temperature", type=float, metavar="T", help="implies --sample")
    command.add_argument("--top-p", type=float, metavar="P", help="implies --sample")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--batch", type=int, default=1, metavar="N", help="prompts answered together")
    command.add_argument("--minutes", type=float, metavar="M", help="begin nothing new after M minutes")
    command.set_defaults(run=in_one_line(_evaluate))


def _evaluate(options: argparse.Namespace) -> int:
    from ..hosts import Host
    from .arms import parse_arm, read_arms, require_matched
    from .evaluate import EvaluatedHost, evaluate, launched

    arms = read_arms(options.arms_file) if options.arms_file else [parse_arm(text) for text in options.arms]
    decoding: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "num_beams": options.num_beams}
    for name in ("temperature", "top_p"):
        if getattr(options, name) is not None:
            decoding[name] = getattr(options, name)
    decoding["do_sample"] = options.sample or len(decoding) > 2
    require_matched(arms, decoding)  # before a model is loaded for nothing
    process, processes, local = launched()
    device = options.device or (f"cuda:{local}" if processes > 1 and _has_gpu() else None)
    loaded = Host(options.model, device, options.dtype)
    host = EvaluatedHost(loaded.model, loaded.tokenizer, options.name or options.model)
    prompts = chosen_prompts(options, host.length)
    if not prompts.prompts:
        raise ValueError("prompts: expected at least one, got none")
    for reason, count in prompts.left_out.items():
        say(f"{count} prompts left out: {reason}")
    prefix = f"[{process}] " if processes > 1 else ""
    left = evaluate(
        host,
        prompts,
        arms,
        options.out,
        decoding=decoding,
        seed=options.seed,
        batch=options.batch,
        process=process,
        processes=processes,
        stop_after=None if options.minutes is None else 60 * options.minutes,
        say=lambda text: say(prefix + text),
    )
    return EXIT_UNFINISHED if left else 0


def _add_score(commands: Any) -> None:
    command = commands.add_parser(
        "score",
        help="judge the answers of runs",
        description="Judge the answers of a run without generating: numbers by the independent checker, "
        "degeneration, likeness to the plain answers, time, paired tests. Prints a Markdown table. Several runs are "
        "one study: a table for each, p values corrected over all.",
    )
    command.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, or a file (.jsonl, .gz)"
    )
    command.add_argument("--plain", default="plain", metavar="ARM", help="what arms are compared with")
    command.add_argument("--json", action="store_true", help="print all figures as JSON")
    command.add_argument("--details", type=Path, metavar="FILE", help="write each answer's figures to FILE")
    command.add_argument("--html", type=Path, metavar="FILE", help="also write a page to look at the answers")
    command.add_argument(
        "--names", action="store_true", help="also count names and identifiers that the context does not have"
    )
    command.add_argument("--encoder", metavar="ID", help="also audit with this LettuceDetect-type encoder")
    command.add_argument("--causal", metavar="ID", help="also audit with this causal detector")
    command.add_argument(
        "--auditor-threshold",
        type=float,
        metavar="P",
        help="of encoder and causal detector (default: 0.5, and the causal detector's own)",
    )
    _add_source(command, required=False, note="; where the runs were packed without contexts")
    command.set_defaults(run=in_one_line(_score))


def _score(options: argparse.Namespace) -> int:
    from .auditors import Auditor, CausalAuditor, EncoderAuditor, NameAuditor
    from .score import Scored, correct, dump, score_run, table

    runs: list[Path] = options.runs
    if len(set(runs)) < len(runs):
        raise ValueError(f"score: expected different runs, got {', '.join(map(str, runs))}")
    if options.html is not None and len(runs) > 1:
        raise ValueError(f"--html: expected one run, got {len(runs)}")
    auditors: list[Auditor] = [NameAuditor()] if options.names else []
    threshold = options.auditor_threshold
    if options.encoder:
        auditors.append(
            EncoderAuditor.load(options.encoder, threshold=0.5 if threshold is None else threshold)
        )
    if options.causal:
        auditors.append(CausalAuditor.load(options.causal, threshold=threshold))
    prompts = _source(options)
    results: dict[str, dict[str, Any]] = {}
    with open(options.details or os.devnull, "w", encoding="utf-8") as file:
        for run in runs:
            more = {"run": str(run)} if len(runs) > 1 else {}

            def details(each: Scored, more: dict[str, str] = more) -> None:
                file.write(dump(each, **more) + "\n")

            results[str(run)] = score_run(
                run, plain=options.plain, auditors=auditors, details=details, prompts=prompts
            )
    correct(list(results.values()))
    if options.html is not None:
        from .html import run_lines, run_page, write_page

        write_page(options.html, run_page(run_lines(runs[0], prompts), title=runs[0].name))
    if options.json:
        shown = results if len(runs) > 1 else results[str(runs[0])]
        print(json.dumps(shown, ensure_ascii=False, indent=2, allow_nan=False))
    elif len(runs) == 1:
        print(table(results[str(runs[0])]))
    else:
        print("\n\n".join(f"**{name}**\n\n{table(found)}" for name, found in results.items()))
    return 0


def _add_tune(commands: Any) -> None:
    command = commands.add_parser(
        "tune",
        help="find the settings for a host on your own prompts",
        description="Measure what each setting costs and what it leaves unsupported, and write a profile for "
        "generate(profile=...). Settings that give the same answer share one generation.",
    )
    add_host_arguments(command, name="model")
    add_prompt_arguments(command)
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the result goes")
    command.add_argument("--detector", default="number", metavar="NAME", help="as for generate")
    command.add_argument(
        "--option", nargs="+", default=[], metavar="NAME=VALUE", help="of prevention, for every setting"
    )
    grid = [0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0]
    command.add_argument("--skip-threshold", nargs="+", type=float, default=grid, metavar="P")
    command.add_argument("--confidence-threshold", nargs="+", type=float, metavar="P", help="model detectors")
    command.add_argument("--candidates", nargs="+", type=int, metavar="N", help="model detectors")
    command.add_argument(
        "--gate-threshold",
        nargs="+",
        type=float,
        metavar="P",
        help="ask model detectors only where a probe's risk is above P (another than the package's: --option probe=DIR)",
    )
    command.add_argument("--max-new-tokens", type=int, default=160, metavar="N")
    command.add_argument(
        "--budget",
        type=float,
        default=1.2,
        metavar="X",
        help="at most X times the host's time (default: 1.2)",
    )
    command.add_argument("--minutes", type=float, metavar="M", help="begin no further prompt after M minutes")
    command.add_argument("--encoder", metavar="ID", help="judge by this encoder instead of by numbers")
    command.add_argument("--no-simulation", action="store_true", help="generate at every setting")
    command.add_argument("--plot", action="store_true", help="also draw plot.png (needs the extra `plot`)")
    command.set_defaults(run=in_one_line(_tune))


def _tune(options: argparse.Namespace) -> int:
    from .tune import run_tune

    return run_tune(options)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _pair(text: str) -> tuple[str, str]:
    name, equals, field = text.partition("=")
    if not equals:
        raise ValueError(f"--fields: expected NAME=FIELD, got {text!r}")
    return name, field
