"""The command `lettuceprevent`: generate an answer, check a finished one, see a demonstration, or
compare tokenizers.

Contract: answers and results go to stdout, progress and complaints to stderr. Exit status 0: done, and for
`check` nothing unsupported; 1: `check` found something; 2: it could not be done, with one line that says why.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .align import add_align_command
from .console import EXIT_FAILED, CommandError, add_host_arguments, say
from .detectors import known_detectors, parse_detector_type
from .evaluation.commands import add_evaluation_commands
from .training.commands import add_train_command
from .version import VERSION

EXIT_UNSUPPORTED = 1
TRACE_WIDTH = 8  # candidates per token that a page shows
NUMBER_FLAGS = ("number_words", "units", "rounding", "derived", "exemptions")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except CommandError as error:
        say(f"lettuceprevent: {error}")
        return EXIT_FAILED
    except BrokenPipeError:  # `lettuceprevent ... | head`
        sys.stderr.close()
        return EXIT_FAILED
    except KeyboardInterrupt:
        say("lettuceprevent: interrupted")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lettuceprevent",
        description="Keep a language model from writing what its context does not support.",
    )
    parser.add_argument("--version", action="version", version=f"lettuceprevent {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    generate = commands.add_parser(
        "generate",
        help="answer a question from a context",
        description="Answer a question from a context, held to that context.",
    )
    add_host_arguments(generate)
    generate.add_argument("--context", required=True, metavar="FILE", help="text file; - for standard input")
    generate.add_argument("--question", required=True, metavar="TEXT")
    generate.add_argument(
        "--detector",
        metavar="NAME",
        help=f"{', '.join(known_detectors())}, or several joined by + (default: number)",
    )
    generate.add_argument(
        "--profile", type=Path, metavar="FILE", help="options that `lettuceprevent tune` found for the host"
    )
    generate.add_argument("--detector-model", metavar="ID", help="checkpoint of a model detector")
    generate.add_argument(
        "--probe",
        type=Path,
        metavar="DIR",
        help="for detector or gate `probe` (default: the package's for this host)",
    )
    generate.add_argument(
        "--gate", choices=("probe",), help="ask model detectors only where the probe's risk is high"
    )
    generate.add_argument(
        "--gate-threshold",
        type=float,
        metavar="P",
        help="... above P (default: the threshold on the probe's card)",
    )
    generate.add_argument(
        "--compare", action="store_true", help="also answer without prevention, and mark the difference"
    )
    generate.add_argument(
        "--json", action="store_true", help="print answer and report as JSON; nothing is streamed"
    )
    generate.add_argument(
        "--report", type=Path, metavar="FILE", help="also write the report, as JSON, to FILE"
    )
    generate.add_argument(
        "--html", type=Path, metavar="FILE", help="also write a page that shows what happened at each token"
    )
    generate.add_argument("--max-new-tokens", type=int, default=200, metavar="N")
    generate.add_argument("--num-beams", type=int, default=1, metavar="N")
    generate.add_argument(
        "--sample", action="store_true", help="sample instead of taking the likeliest token"
    )
    generate.add_argument("--temperature", type=float, metavar="T", help="implies --sample")
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument(
        "--on-unsupported",
        choices=("avoid", "substitute", "retract"),
        help="what to do where the model means an unsupported number: say something else, and take back one that "
        "has begun (retract, the default without beams); hold one that has begun to a supported one (avoid); or "
        "write the next best one (substitute)",
    )
    generate.add_argument(
        "--skip-threshold", type=float, metavar="P", help="no check above this top probability"
    )
    _add_number_options(generate)
    generate.set_defaults(run=_generate)

    check = commands.add_parser(
        "check",
        help="check the numbers of a finished answer",
        description="Say for each number of an answer what supports it. Exit status 1 if any is unsupported.",
    )
    check.add_argument("context", metavar="CONTEXT", help="text file; - for standard input")
    check.add_argument("answer", metavar="ANSWER", help="text file; - for standard input")
    check.add_argument("--question", metavar="TEXT", help="its numbers count as evidence, too")
    check.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    _add_number_options(check)
    check.set_defaults(run=_check)

    demo = commands.add_parser(
        "demo",
        help="see a real model with and without prevention",
        description="Answer from three short contexts with and without prevention, on SmolLM2-135M-Instruct or --model.",
    )
    add_host_arguments(demo, required=False)
    demo.add_argument("--max-new-tokens", type=int, default=44, metavar="N")
    demo.set_defaults(run=_demo)

    add_align_command(commands)
    add_evaluation_commands(commands)
    add_train_command(commands)
    return parser


def _add_number_options(parser: argparse.ArgumentParser) -> None:
    for name, default, text in (
        ("number-words", True, "numbers in words are free"),
        ("units", True, "percent and currency marks are free"),
        ("exemptions", True, "list markers and citations are judged like other numbers"),
        ("rounding", False, "rounded numbers of the context count as supported"),
        ("derived", False, "sums, differences and growth rates count as supported"),
    ):
        flag = f"--no-{name}" if default else f"--{name}"
        dest = name.replace("-", "_")
        parser.add_argument(flag, dest=dest, action="store_const", const=not default, help=text)


def _number_options(options: argparse.Namespace) -> dict[str, bool]:
    return {name: getattr(options, name) for name in NUMBER_FLAGS if getattr(options, name) is not None}


# -- check ----------------------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> int:
    from .check import check_text

    if options.context == options.answer == "-":
        raise CommandError("expected one of CONTEXT and ANSWER to be a file, got - for both")
    context = _read(options.context, "context")
    answer = _read(options.answer, "answer", may_be_empty=True)
    verdicts = check_text(context, answer, query=options.question, **_number_options(options))
    wrong = sum(verdict.status == "unsupported" for verdict in verdicts)
    if options.json:
        rows = [
            {
                "start": verdict.start,
                "end": verdict.end,
                "text": verdict.text,
                "status": verdict.status,
                "evidence": verdict.evidence,
            }
            for verdict in verdicts
        ]
        print(json.dumps({"unsupported": wrong, "verdicts": rows}, ensure_ascii=False, indent=2))
    else:
        for verdict in verdicts:
            line = f"{verdict.start}-{verdict.end}\t{verdict.text}\t{verdict.status}"
            print(line + (f" by {verdict.evidence!r}" if verdict.evidence else ""))
        print(f"{len(verdicts)} numbers, {wrong} unsupported")
    return EXIT_UNSUPPORTED if wrong else 0


# -- generate -------------------------------------------------------------------------------------------


def _generate(options: argparse.Namespace) -> int:
    from .hosts import Host
    from .profiles import Profile

    detector = options.detector
    try:
        if options.profile is not None:
            detector = detector or Profile.load(options.profile).detector["type"]
        detector = detector or "number"
        parse_detector_type(detector)
    except ValueError as error:
        raise CommandError(str(error)) from error
    context = _read(options.context, "context")
    host = Host(options.model, options.device, options.dtype)
    extra: dict[str, Any] = {"detector_type": detector, "profile": options.profile}
    if "number" in detector:
        extra.update(_number_options(options))
    for name in ("detector_model", "on_unsupported", "skip_threshold", "probe", "gate", "gate_threshold"):
        if getattr(options, name) is not None:
            extra[name] = getattr(options, name)
    decoding: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "num_beams": options.num_beams}
    decoding["do_sample"] = options.sample or options.temperature is not None
    if options.temperature is not None:
        decoding["temperature"] = options.temperature
    stream = not options.json and options.num_beams == 1
    plain = None
    if options.compare:
        if not options.json:
            say("without prevention:")
        plain = host.answer(context, options.question, seed=options.seed, stream=stream, **decoding)
        if not options.json:
            say("with prevention:")
    trace = 0 if options.html is None else TRACE_WIDTH
    answer = host.answer(
        context,
        options.question,
        seed=options.seed,
        stream=stream,
        prevention=extra,
        trace=trace,
        **decoding,
    )
    if options.html is not None:
        from .evaluation.html import generation_page, write_page

        shown = generation_page(
            answer.report.to_dict(),
            [context],
            options.question,
            plain=plain.text if plain is not None else None,
            meta=[f"{options.model}, {detector}, {answer.seconds:.1f} s"],
        )
        write_page(options.html, shown)
    if options.report is not None:
        answer.report.to_json(options.report)
    if options.json:
        found = {"answer": answer.text, "report": json.loads(answer.report.to_json())}
        if plain is not None:
            found["plain"] = plain.text
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return 0
    if plain is not None:
        print("\nthe difference:\n" + mark_difference(plain.text, answer.text, color=sys.stdout.isatty()))
    say(f"\n{answer.report.summary()}")
    return 0


def mark_difference(before: str, after: str, *, color: bool) -> str:
    """`after` with what it has instead of `before` marked: [-gone-] {+new+}, or in colour."""
    import difflib
    import re

    old, new = re.findall(r"\S+|\s+", before), re.findall(r"\S+|\s+", after)
    parts = []
    gone, come = ("\033[31;9m{}\033[0m", "\033[32;1m{}\033[0m") if color else ("[-{}-]", "{{+{}+}}")
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        removed, added = "".join(old[i:j]), "".join(new[k:m])
        if kind == "equal":
            parts.append(added)
            continue
        if removed:
            parts.append(gone.format(removed))
        if added:
            parts.append(come.format(added))
    return "".join(parts)


# -- demo -----------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    from .demo import show
    from .hosts import Host

    name = options.model
    if name is None:
        from .assets import HOST, asset_path

        folder = asset_path(HOST)
        if folder is None:
            raise CommandError(
                f"{HOST} has not been fetched; run `python scripts/get_assets.py {HOST}` (or `make demo`), or pass "
                "--model with a Hugging Face id or folder"
            )
        name = str(folder)
    show(
        Host(name, options.device, options.dtype),
        max_new_tokens=options.max_new_tokens,
        color=sys.stdout.isatty(),
    )
    return 0


# -- common ---------------------------------------------------------------------------------------------


def _read(name: str, what: str, may_be_empty: bool = False) -> str:
    """The text of a file or of standard input."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{what}: expected a text file or -, got {name!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(
            f"{what}: expected UTF-8 text in {name!r}, got bytes that are not ({error.reason})"
        ) from error
    if not text.strip() and not may_be_empty:
        raise CommandError(f"{what}: expected text in {name!r}, got an empty one")
    return text


if __name__ == "__main__":
    sys.exit(main())
