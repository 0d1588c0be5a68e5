"""The command `lettuceprevent train`: the card of what was trained goes to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..console import add_host_arguments, in_one_line, say


def add_train_command(commands: Any) -> None:
    """Add `train probe`, `train causal` and `train merge` to the subparsers of the command line."""
    train = commands.add_parser("train", help="train a detector for your own host")
    kinds = train.add_subparsers(title="detectors", required=True, metavar="DETECTOR")
    probe = kinds.add_parser(
        "probe",
        help="a linear probe on the frozen host's states",
        description="Train a linear probe. A run that was stopped goes on where it was, with the same --out.",
    )
    add_host_arguments(probe, name="--host")
    probe.add_argument(
        "--data", required=True, nargs="+", metavar="FILE", help="JSON lines, or hub:NAME[:SPLIT]"
    )
    probe.add_argument("--also", nargs="+", default=[], metavar="FILE", help="trained on, not validated on")
    probe.add_argument(
        "--also-share", type=float, default=1.0, metavar="P", help="how many of those answers (default: 1)"
    )
    probe.add_argument(
        "--corrupt", type=float, default=0.0, metavar="N", help="corrupted copies per answer without spans"
    )
    probe.add_argument(
        "--test-file", nargs="+", default=[], metavar="FILE", help="refuse to train on contexts of these"
    )
    probe.add_argument("--out", required=True, type=Path, metavar="DIR")
    probe.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help="candidates (default: seven, spread)"
    )
    probe.add_argument("--limit", type=int, metavar="N", help="only the first N answers")
    probe.add_argument("--folds", type=int, default=5, metavar="N", help="of the cross-validation")
    probe.add_argument("--seed", type=int, default=0)
    probe.set_defaults(run=in_one_line(_train_probe))
    _add_causal(kinds)
    _add_merge(kinds)


def _add_causal(kinds: Any) -> None:
    causal = kinds.add_parser(
        "causal",
        help="a causal detector: token classification on a causal model",
        description="Train a causal detector. A run that was stopped goes on where it was, with the same arguments.",
    )
    causal.add_argument("--backbone", required=True, metavar="ID", help="a causal model's id or folder")
    causal.add_argument(
        "--data", required=True, nargs="+", metavar="FILE", help="JSON lines, or hub:NAME[:SPLIT]"
    )
    causal.add_argument("--out", required=True, type=Path, metavar="DIR")
    causal.add_argument(
        "--host-tokenizer",
        nargs="+",
        default=[],
        metavar="ID",
        help="whose tokens answers are cut into, one drawn per answer (default: the backbone's)",
    )
    causal.add_argument(
        "--test-file", nargs="+", default=[], metavar="FILE", help="refuse data that shares a context with it"
    )
    causal.add_argument(
        "--alignment",
        default="host_chunks",
        choices=("host_chunks", "direct"),
        help="how answers are shown (default: host_chunks; direct takes no --host-tokenizer)",
    )
    causal.add_argument("--keep-layers", type=int, metavar="N", help="only the backbone's first N layers")
    causal.add_argument(
        "--lora-rank", type=int, default=16, metavar="R", help="0: train all weights (default: 16)"
    )
    causal.add_argument(
        "--lora-layers", type=_layers, metavar="A-B", help="adapted layers, from 1 (default: all)"
    )
    causal.add_argument(
        "--answer-only",
        action="store_true",
        help="LoRA acts on answers alone; each context is read once, by the base as it is",
    )
    causal.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="of the products (default: bfloat16, but float32 on a CPU that is slow in it)",
    )
    causal.add_argument("--corrupt", type=float, default=0.0, metavar="SHARE", help="of supported answers")
    causal.add_argument(
        "--omit",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the answers, a second time over a context without what one of their sentences rests on",
    )
    causal.add_argument(
        "--records", type=int, default=0, metavar="N", help="made-up business records, three answers each"
    )
    causal.add_argument(
        "--average", type=float, default=0.0, metavar="DECAY", help="moving average of the weights (0: none)"
    )
    causal.add_argument("--positive-weight", type=float, default=4.0, metavar="W")
    causal.add_argument(
        "--learning-rate", type=float, metavar="X", help="default: 3e-4, or 5e-5 for all weights"
    )
    causal.add_argument(
        "--head-answers",
        type=int,
        default=256,
        metavar="N",
        help="answers on whose states the head is fitted before the first step; 0: none",
    )
    causal.add_argument("--batch", type=int, default=8, metavar="N", help="answers a step")
    causal.add_argument("--max-prompt", type=int, default=700, metavar="N", help="tokens before the answer")
    causal.add_argument("--epochs", type=float, default=2.0, metavar="N")
    causal.add_argument("--minutes", type=float, metavar="N", help="stop after so long, validation included")
    causal.add_argument("--validation", type=float, default=0.1, metavar="P", help="share of contexts")
    causal.add_argument(
        "--patience", type=int, default=3, metavar="N", help="validations (two an epoch) without gain"
    )
    causal.add_argument("--save-minutes", type=float, default=5.0, metavar="N", help="how often to save")
    causal.add_argument("--limit", type=int, metavar="N", help="only the first N answers")
    causal.add_argument("--seed", type=int, default=0)
    causal.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    causal.set_defaults(run=in_one_line(_train_causal))


def _add_merge(kinds: Any) -> None:
    merged = kinds.add_parser(
        "merge",
        help="several causal trainings made one",
        description="Average LoRA trainings of one base on the same data, with one seed and share for validation.",
    )
    merged.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="written by `train causal`")
    merged.add_argument("--data", required=True, nargs="+", metavar="FILE", help="what they were trained on")
    merged.add_argument(
        "--host-tokenizer", nargs="+", default=[], metavar="ID", help="as they were trained with"
    )
    merged.add_argument("--limit", type=int, metavar="N", help="only the first N answers")
    merged.add_argument("--out", required=True, type=Path, metavar="DIR")
    merged.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    merged.set_defaults(run=in_one_line(_merge))


def _layers(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdigit() or not last.isdigit():
        raise argparse.ArgumentTypeError(f"expected A-B, two layers, got {text!r}")
    return int(first), int(last)


def _products(options: argparse.Namespace) -> str:
    """The precision that was asked for, or a fast one."""
    import torch

    from ..precision import fast_dtype

    device = "cpu" if options.cpu or not torch.cuda.is_available() else "cuda"
    return options.dtype or str(fast_dtype(torch.bfloat16, device)).removeprefix("torch.")


def _train_causal(options: argparse.Namespace) -> int:
    from .causal import Recipe, train_causal
    from .data import load_examples, read_contexts
    from .splits import check_disjoint

    rate = options.learning_rate or (3e-4 if options.lora_rank else 5e-5)
    examples = load_examples(options.data, say=say)[: options.limit]
    for file in options.test_file:
        check_disjoint(examples, read_contexts(file), Path(file).name)
    card = train_causal(
        options.backbone,
        examples,
        options.out,
        Recipe(
            keep_layers=options.keep_layers,
            lora_rank=options.lora_rank,
            lora_layers=options.lora_layers,
            answer_only=options.answer_only,
            dtype=_products(options),
            alignment=options.alignment,
            positive_weight=options.positive_weight,
            learning_rate=rate,
            head_answers=options.head_answers,
            batch=options.batch,
            most_prompt=options.max_prompt,
            corrupted=options.corrupt,
            omitted=options.omit,
            records=options.records,
            average=options.average,
            validation=options.validation,
            epochs=options.epochs,
            patience=options.patience,
            minutes=options.minutes,
            seed=options.seed,
        ),
        hosts=options.host_tokenizer,
        cpu=options.cpu,
        save_minutes=options.save_minutes,
        say=say,
    )
    if card:  # the first process has it
        print(json.dumps(card, indent=2))
    return 0


def _train_probe(options: argparse.Namespace) -> int:
    from ..hosts import Host
    from ..profiles import host_name
    from .data import load_examples, read_contexts
    from .probe import drawn_share, train_probe
    from .splits import check_disjoint

    examples = load_examples(options.data, say=say)[: options.limit]
    also = drawn_share(load_examples(options.also, say=say), options.also_share, options.seed)[
        : options.limit
    ]
    for path in options.test_file:
        check_disjoint([*examples, *also], read_contexts(path), path)
    host = Host(options.host, options.device, options.dtype)
    probe = train_probe(
        host.model,
        host.tokenizer,
        host_name(options.host),
        examples,
        options.out,
        also=also,
        corrupt=options.corrupt,
        layers=options.layers,
        folds=options.folds,
        seed=options.seed,
        say=say,
    )
    print(json.dumps(probe.card, indent=2))
    return 0


def _merge(options: argparse.Namespace) -> int:
    from .data import load_examples
    from .merge import merge

    examples = load_examples(options.data, say=say)[: options.limit]
    card = merge(
        options.folders, examples, options.out, hosts=options.host_tokenizer, cpu=options.cpu, say=say
    )
    print(json.dumps(card, indent=2))
    return 0
