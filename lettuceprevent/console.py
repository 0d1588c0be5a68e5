"""What all commands share: results go to stdout, progress and complaints to stderr, a failure is one line.

Contract: importing this costs nothing. It is a module of its own, and not part of cli.py, because cli.py run as
`python -m lettuceprevent.cli` is another module than the one the commands would import.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

EXIT_FAILED = 2
Command = Callable[[argparse.Namespace], int]


class CommandError(Exception):
    """Something the user can put right; its message is shown without a traceback."""


def in_one_line(run: Command) -> Command:
    """`run`, with what the user can put right (ValueError, TypeError, OSError, ImportError of an extra) as a
    CommandError."""

    def guarded(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except (ValueError, TypeError, OSError, ImportError) as error:
            raise CommandError(str(error)) from error

    return guarded


def add_host_arguments(
    command: argparse.ArgumentParser, required: bool = True, name: str = "--model"
) -> None:
    """Which host, and where and how it is loaded. name: the option, or a positional argument."""
    described = "Hugging Face model id or folder"
    if name.startswith("-"):
        command.add_argument(name, required=required, metavar="ID", help=described)
    else:
        command.add_argument(name, metavar="HOST", help=described)
    command.add_argument(
        "--device", metavar="DEVICE", help="where to run it (default: a GPU if there is one)"
    )
    command.add_argument(
        "--dtype",
        default="auto",
        help="float32, bfloat16, ... (default: the checkpoint's, but float32 on a CPU that is slow in it)",
    )


def say(text: str) -> None:
    """A line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str) -> Any:
    """Say on stderr what takes its time, and how long it took."""
    began = time.perf_counter()
    print(f"{what} ... ", end="", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        say("failed")
        raise
    say(f"{time.perf_counter() - began:.1f} s")
