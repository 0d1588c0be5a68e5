"""The command `lettuceprevent train`: the card of what was trained goes to stdout, progress to stderr."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..console import add_host_arguments, in_one_line, say


def add_train_command(commands: Any) -> None:
    """Add `train probe` to the subparsers of the command line."""
    train = commands.add_parser("train", help="train a detector for your own host")
    kinds = train.add_subparsers(title="detectors", required=True, metavar="DETECTOR")
    probe = kinds.add_parser(
        "probe",
        help="a linear probe on the frozen host's states",
        description="Train a linear probe. A run that was stopped goes on where it was, with the same --out.",
    )
    add_host_arguments(probe, name="--host")
    probe.add_argument("--data", required=True, nargs="+", metavar="FILE", help="JSON lines, see the docs")
    probe.add_argument("--out", required=True, type=Path, metavar="DIR")
    probe.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help="candidates (default: seven, spread)"
    )
    probe.add_argument("--limit", type=int, metavar="N", help="only the first N answers")
    probe.add_argument("--validation", type=float, default=0.15, metavar="P", help="share of contexts")
    probe.add_argument("--seed", type=int, default=0)
    probe.set_defaults(run=in_one_line(_train_probe))


def _train_probe(options: argparse.Namespace) -> int:
    from ..hosts import Host
    from ..profiles import host_name
    from .data import load_examples
    from .probe import train_probe

    examples = load_examples(options.data)[: options.limit]
    host = Host(options.host, options.device, options.dtype)
    probe = train_probe(
        host.model,
        host.tokenizer,
        host_name(options.host),
        examples,
        options.out,
        layers=options.layers,
        validation=options.validation,
        seed=options.seed,
        say=say,
    )
    print(json.dumps(probe.card, indent=2))
    return 0
