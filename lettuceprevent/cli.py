"""The command `lettuceprevent`: generate an answer, check a finished one, see a demonstration, or
compare tokenizers.

Contract: answers and results go to stdout, progress and complaints to stderr. Exit status 0: done, and for
`check` nothing unsupported; 1: `check` found something; 2: it could not be done, with one line that says why.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .align import add_align_command
from .detectors import known_detectors, parse_detector_type
from .evaluation.commands import add_evaluation_commands
from .training.commands import add_train_command
from .version import VERSION

EXIT_UNSUPPORTED = 1
EXIT_FAILED = 2
TRACE_WIDTH = 8  # candidates per token that a page shows
NUMBER_FLAGS = ("number_words", "units", "rounding", "derived", "exemptions")


class CommandError(Exception):
    """Something the user can put right; its message is shown without a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options))
    except CommandError as error:
        print(f"lettuceprevent: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # `lettuceprevent ... | head`
        sys.stderr.close()
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("lettuceprevent: interrupted", file=sys.stderr)
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
    _add_host(generate)
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
    _add_host(demo, required=False)
    demo.add_argument("--max-new-tokens", type=int, default=44, metavar="N")
    demo.set_defaults(run=_demo)

    add_align_command(commands)
    add_evaluation_commands(commands)
    add_train_command(commands)
    return parser


def _add_host(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument("--model", required=required, metavar="ID", help="Hugging Face model id or folder")
    parser.add_argument("--device", metavar="DEVICE", help="where to run it (default: a GPU if there is one)")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, ... (default: the checkpoint's)")


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
    for name in ("detector_model", "on_unsupported", "skip_threshold"):
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
            _say("without prevention:")
        plain = host.answer(context, options.question, seed=options.seed, stream=stream, **decoding)
        if not options.json:
            _say("with prevention:")
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
    print(f"\n{answer.report.summary()}", file=sys.stderr)
    return 0


class Answer:
    """An answer, the seconds it took, the report, and whether it was cut off rather than ended."""

    def __init__(self, text: str, seconds: float, report: Any, cut: bool) -> None:
        self.text = text
        self.seconds = seconds
        self.report = report
        self.cut = cut


class Host:
    """A model and its tokenizer, loaded with a word on what is going on. Loading may raise CommandError."""

    def __init__(self, name: str, device: str | None = None, dtype: str = "auto") -> None:
        with _progress("loading the libraries"):
            import torch
            from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
            from transformers.utils import logging

            logging.set_verbosity_error()
            logging.disable_progress_bar()
        if dtype != "auto" and not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise CommandError(f"--dtype: expected float32, bfloat16, float16 or auto, got {dtype!r}")
        with _progress(f"loading {name}"):
            try:
                config = AutoConfig.from_pretrained(name)
                loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
                self.tokenizer = AutoTokenizer.from_pretrained(name)
                self.model = loader.from_pretrained(name, dtype=dtype).eval()
            except (OSError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise CommandError(
                    f"--model: expected a Hugging Face model id or folder, got {name!r}: {reason}"
                ) from error
            chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
            try:
                self.model = self.model.to(chosen)
            except (RuntimeError, AssertionError) as error:
                raise CommandError(f"--device: {error}") from error

    def encode(self, context: str, question: str) -> dict[str, Any]:
        """The prompt: context and question as one user turn where the model has a chat template."""
        content = f"{context.strip()}\n\n{question.strip()}"
        if getattr(self.tokenizer, "chat_template", None):
            turn = [{"role": "user", "content": content}]
            inputs = self.tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
        else:
            inputs = self.tokenizer(f"{content}\n\nAnswer:", return_tensors="pt")
        inputs.pop("token_type_ids", None)
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def answer(
        self,
        context: str,
        question: str,
        *,
        seed: int = 0,
        stream: bool = False,
        prevention: dict[str, Any] | None = None,
        trace: int = 0,
        **decoding: Any,
    ) -> Answer:
        """Generate one answer, with prevention where its options are given, printing it as it comes if
        `stream`."""
        import torch
        from transformers import TextStreamer

        from .generation import generate
        from .report import PreventionReport

        inputs = self.encode(context, question)
        if self.tokenizer.pad_token_id is None:
            eos = self.tokenizer.eos_token_id
            decoding["pad_token_id"] = eos[0] if isinstance(eos, list) else eos
        decoder_only = not self.model.config.is_encoder_decoder
        if stream:
            decoding["streamer"] = TextStreamer(
                self.tokenizer, skip_prompt=decoder_only, skip_special_tokens=True
            )
        report = PreventionReport(trace=trace)
        torch.manual_seed(seed)
        began = time.perf_counter()
        try:
            out = generate(
                self.model,
                tokenizer=self.tokenizer,
                input_text=context,
                query=question,
                report=report,
                **{"detector_type": None, **(prevention or {})},
                **inputs,
                **decoding,
            )
        except (ValueError, TypeError, OSError) as error:  # OSError: a detector's files
            raise CommandError(str(error)) from error
        seconds = time.perf_counter() - began
        new = out[0, inputs["input_ids"].shape[1] :] if decoder_only else out[0]
        cut = (
            len(new) >= decoding.get("max_new_tokens", 0)
            and int(new[-1]) not in self.tokenizer.all_special_ids
        )
        return Answer(self.tokenizer.decode(new, skip_special_tokens=True).strip(), seconds, report, cut)


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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(what: str) -> Any:
    """Say on stderr what takes its time, and how long it took."""
    began = time.perf_counter()
    print(f"{what} ... ", end="", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        print("failed", file=sys.stderr, flush=True)
        raise
    print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
