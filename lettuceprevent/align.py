"""`lettuceprevent align`: how far a host's tokens are from those the detector was trained on, and which mode
to use.

Contract: `align` only reads tokenizers and texts; no model is loaded. All shares are of bytes of text. It is
no part of what runs in generation: `alignment.py` is.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import regex

from .alignment import REFERENCE_NAME, DetectorTokenizer, clean_up_spaces, host_encoder, token_text
from .assets import asset_path
from .console import CommandError
from .vocabulary import UnsupportedTokenizerError, Vocabulary

# Below this share of bytes with other detector ids than in training, the append-only mode is as good and
# cheaper.
CLOSE = 0.02
CLOSE_IN_NUMBERS = 0.1  # numbers are what most often is made up

SAMPLE = (
    "The company said on Tuesday that revenue rose by 12.5% to $2,400 million in 2021, from 1,987,654,321 a year "
    "earlier; it'll hire another 300 people by March 5, 2023.",
    'Officers found 10 bags (about 3.5 kg) at 22:45 on 2019-07-14. "We weren\'t expecting it," a spokeswoman said.',
    "1. Preheat the oven to 180 °C.\n2. Mix 250 g of flour, 3 eggs and half a litre of milk.\n\n- Serves four to six",
    "The naïve café-goer’s bill came to €1.234,56 — “too much”, he tweeted 😀. It's the 23rd time since 1998–99.",
    "Based on the passages, a 30-year mortgage at 4.375% with $250,000 borrowed costs roughly $1,248.21 per month.",
    "Provided to YouTube by Universal Music Group. Phone: (805) 555-0147; open 7 days, 11:00-21:30; rated 4.5 of 5.",
)


@dataclass(frozen=True)
class Agreement:
    """Cuts of the host against cuts of the training tokenizer; shares in 0..1, None where neither cuts."""

    precision: float | None
    recall: float | None
    host: int
    reference: int


@dataclass(frozen=True)
class HostReport:
    """What `align` found. Agreements, differences and distances need the training tokenizer and are None
    without it.
    """

    host: str
    texts: int
    round_trip: float  # share of texts that come back from the host's ids byte by byte
    tokens_per_word: float
    tokens_per_word_reference: float | None
    number_pattern: str
    number_example: str
    words: Agreement | None  # cuts between two letters
    numbers: Agreement | None  # cuts between two digits
    everywhere: Agreement | None
    host_chunks_vs_training: float | None  # share of bytes whose detector ids differ from those of training
    direct_vs_training: float | None
    host_chunks_vs_direct: float
    numbers_host_chunks_vs_training: float | None  # the same, of the bytes of numbers alone
    recommended: str
    why: str

    def summary(self) -> str:
        """A few lines for people."""
        lines = [
            f"{self.host}: {self.texts} texts, {100 * self.round_trip:.0f} % come back byte by byte",
            f"  tokens per word {self.tokens_per_word:.2f}"
            + (f" (training {self.tokens_per_word_reference:.2f})" if self.tokens_per_word_reference else ""),
            f"  numbers are cut {self.number_pattern} ({self.number_example})",
        ]
        for name, found in (("letters", self.words), ("digits", self.numbers), ("anything", self.everywhere)):
            if found is not None:
                lines.append(
                    f"  cuts between {name}: precision {_percent(found.precision)}, recall {_percent(found.recall)} "
                    f"of the training tokenizer's ({found.host} and {found.reference} cuts)"
                )
        if self.host_chunks_vs_training is not None:
            lines.append(
                f"  text with other detector ids than in training: host_chunks {_percent(self.host_chunks_vs_training)}"
                f" (numbers {_percent(self.numbers_host_chunks_vs_training)}), direct "
                f"{_percent(self.direct_vs_training)}, reference_chunks 0 %"
            )
        lines.append(f"  host_chunks and direct differ in {_percent(self.host_chunks_vs_direct)} of the text")
        lines.append(f"  use {self.recommended}: {self.why}")
        return "\n".join(lines)


def align(
    host_tokenizer: Any,
    detector_tokenizer: Any,
    *,
    reference_tokenizer: Any = None,
    texts: Iterable[str] = SAMPLE,
    name: str = "host",
    clean_up: bool = False,
) -> HostReport:
    """Measure a host. `reference_tokenizer`: the one used in training; `texts`: answers such as the host
    writes.
    """
    host = _Cutter(host_tokenizer)
    reference = None if reference_tokenizer is None else _Cutter(reference_tokenizer)
    detector = _Cutter(detector_tokenizer)
    texts = [text for text in texts if text]
    if not texts:
        raise ValueError("expected at least one text, got none")
    counts: Counter[str] = Counter()
    cuts: dict[str, Counter[str]] = {kind: Counter() for kind in ("words", "numbers", "everywhere")}
    for text in texts:
        data = text.encode("utf-8")
        mine = host.cuts(text)
        counts["whole"] += host.joined(text) == data
        counts["words"] += len(text.split())
        counts["tokens"] += len(mine)
        direct = _whole(text, detector)
        chunks = _chunks(text, host, detector, clean_up)
        counts["bytes"] += len(data)
        counts["chunks_direct"] += max(0, len(data) - _same(chunks, direct))
        if reference is None:
            continue
        theirs = reference.cuts(text)
        counts["reference_tokens"] += len(theirs)
        for kind, inside in (("words", _letters(text)), ("numbers", _digits(text)), ("everywhere", None)):
            a = {at for at, _ in mine if at and (inside is None or at in inside)}
            b = {at for at, _ in theirs if at and (inside is None or at in inside)}
            cuts[kind].update(host=len(a), reference=len(b), both=len(a & b))
        trained = _chunks(text, reference, detector, clean_up)
        counts["chunks_trained"] += max(0, len(data) - _same(chunks, trained))
        counts["direct_trained"] += max(0, len(data) - _same(direct, trained))
        spans = _number_spans(text)
        counts["number_bytes"] += sum(end - start for start, end in spans)
        counts["numbers_chunks_trained"] += sum(
            end - start - _same(chunks, trained, start, end) for start, end in spans
        )
    known = reference is not None
    chunks_trained = counts["chunks_trained"] / counts["bytes"] if known else None
    direct_trained = counts["direct_trained"] / counts["bytes"] if known else None
    pattern, example = _number_pattern(host)
    in_numbers = counts["numbers_chunks_trained"] / max(1, counts["number_bytes"]) if known else None
    recommended, why = _recommend(chunks_trained, direct_trained, in_numbers)
    return HostReport(
        host=name,
        texts=len(texts),
        round_trip=counts["whole"] / len(texts),
        tokens_per_word=counts["tokens"] / max(1, counts["words"]),
        tokens_per_word_reference=counts["reference_tokens"] / max(1, counts["words"]) if known else None,
        number_pattern=pattern,
        number_example=example,
        words=_agreement(cuts["words"]) if known else None,
        numbers=_agreement(cuts["numbers"]) if known else None,
        everywhere=_agreement(cuts["everywhere"]) if known else None,
        host_chunks_vs_training=chunks_trained,
        direct_vs_training=direct_trained,
        host_chunks_vs_direct=counts["chunks_direct"] / counts["bytes"],
        numbers_host_chunks_vs_training=in_numbers,
        recommended=recommended,
        why=why,
    )


def _recommend(chunks: float | None, direct: float | None, in_numbers: float | None) -> tuple[str, str]:
    if chunks is None or direct is None or in_numbers is None:
        return (
            "host_chunks",
            "the training tokenizer is not at hand, so nothing could be compared; it is append-only",
        )
    if chunks <= CLOSE and in_numbers <= CLOSE_IN_NUMBERS:
        return (
            "host_chunks",
            f"its ids are those of training but for {_percent(chunks)} of the text, and append-only",
        )
    return (
        "reference_chunks",
        f"host_chunks shows the detector other ids than in training in {_percent(chunks)} of the text and "
        f"{_percent(in_numbers)} of numbers; where the training tokenizer is not at hand, "
        f"{'direct' if direct < chunks else 'host_chunks'} is the closer one",
    )


class _Cutter:
    """A tokenizer's cuts in texts, in bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self.vocabulary = Vocabulary.for_tokenizer(tokenizer)
        self.encode = host_encoder(tokenizer)
        self.alone = DetectorTokenizer(tokenizer)

    def cuts(self, text: str) -> list[tuple[int, int]]:
        """(byte offset, id) of each token with bytes."""
        at, found = -self._blank(text), []
        for token in self.encode(text):
            size = len(self.vocabulary[token])
            if size:
                found.append((max(0, at), token))
            at += size
        return found

    def joined(self, text: str) -> bytes:
        return self.vocabulary.join(self.encode(text))[self._blank(text) :]

    def _blank(self, text: str) -> int:
        """1 where the tokenizer put a blank before the text, as SentencePiece does."""
        ids = self.encode(text)
        return int(bool(ids) and not text.startswith(" ") and self.vocabulary[ids[0]].startswith(b" "))


def _whole(text: str, detector: _Cutter) -> dict[int, tuple[int, int]]:
    """Byte offset -> (id, size): the detector's tokens of a whole text."""
    return {at: (token, len(detector.vocabulary[token])) for at, token in detector.cuts(text)}


def _chunks(text: str, cutter: _Cutter, detector: _Cutter, clean_up: bool) -> dict[int, tuple[int, int]]:
    """The same where each of the cutter's tokens is tokenised on its own."""
    found: dict[int, tuple[int, int]] = {}
    for number, (at, token) in enumerate(cutter.cuts(text)):
        data = cutter.vocabulary[token]
        if number == 0 and not text.startswith(" ") and data.startswith(b" "):
            data = data[1:]
        chunk = token_text(data)
        for piece in detector.alone(clean_up_spaces(chunk) if clean_up else chunk):
            size = len(detector.vocabulary[piece])
            found[at] = (piece, size)
            at += size
    return found


def _same(
    a: dict[int, tuple[int, int]], b: dict[int, tuple[int, int]], start: int = 0, end: int | None = None
) -> int:
    """Bytes, of those in [start, end), that lie in tokens which both have at the same place."""
    common, done = 0, start
    for at, (token, size) in sorted(a.items()):
        if b.get(at) == (token, size):
            # U+FFFD has three bytes and may stand for one: no byte is counted twice.
            until = at + size if end is None else min(at + size, end)
            common += max(0, until - max(at, done))
            done = max(done, until)
    return common if end is None else min(common, end - start)


def _offsets(text: str) -> list[int]:
    at, found = 0, []
    for character in text:
        found.append(at)
        at += len(character.encode("utf-8"))
    return [*found, at]


def _between(text: str, pattern: str) -> set[int]:
    """Byte offsets inside runs that match `pattern`, without their ends."""
    offsets = _offsets(text)
    return {offsets[at] for run in regex.finditer(pattern, text) for at in range(run.start() + 1, run.end())}


def _letters(text: str) -> set[int]:
    return _between(text, r"\p{L}{2,}")


def _digits(text: str) -> set[int]:
    return _between(text, r"\p{Nd}{2,}")


def _number_spans(text: str) -> list[tuple[int, int]]:
    offsets = _offsets(text)
    return [
        (offsets[run.start()], offsets[run.end()])
        for run in regex.finditer(r"\p{Nd}(?:[\p{Nd}.,:]*\p{Nd})?", text)
    ]


def _number_pattern(host: _Cutter) -> tuple[str, str]:
    """How the host cuts long runs of digits, and an example."""

    def cut(digits: str) -> list[str]:
        pieces = [host.vocabulary[token].decode("utf-8", "replace") for token in host.encode(" " + digits)]
        return [piece.strip() for piece in pieces if piece.strip()]

    samples = {digits: cut(digits) for digits in ("2021", "12345", "1234567", "90817263", "4086")}
    example = "|".join(samples["12345"]) + " " + "|".join(samples["1234567"])
    if all(all(len(piece) == 1 for piece in pieces) for pieces in samples.values()):
        return "one by one", example
    if all(all(len(piece) == 3 for piece in pieces[:-1]) for pieces in samples.values()):
        return "in threes from the left", example
    if all(all(len(piece) == 3 for piece in pieces[1:]) for pieces in samples.values()):
        return "in threes from the right", example
    return "by frequency", example


def _agreement(count: Counter[str]) -> Agreement:
    return Agreement(
        precision=count["both"] / count["host"] if count["host"] else None,
        recall=count["both"] / count["reference"] if count["reference"] else None,
        host=count["host"],
        reference=count["reference"],
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


# -- command --------------------------------------------------------------------------------------------


def add_align_command(commands: Any) -> None:
    """Add `align` to an argparse subparsers object; its `run` takes the parsed options and returns the exit
    status.
    """
    command = commands.add_parser(
        "align",
        help="compare a host's tokens with those the causal detector was trained on",
        description="Compare a host's tokens with the causal detector's training, and say which alignment to use.",
    )
    command.add_argument("host", metavar="HOST", help="folder or hub id with the host's tokenizer")
    command.add_argument(
        "--detector", metavar="ID", help="the detector's checkpoint or tokenizer (default: ModernBERT's)"
    )
    command.add_argument(
        "--reference", metavar="ID", help=f"the tokenizer used in training (default: {REFERENCE_NAME})"
    )
    command.add_argument(
        "--text", type=Path, metavar="FILE", help="text to compare on, one answer per blank line"
    )
    command.add_argument("--json", action="store_true", help="print the figures as JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; CommandError where a tokenizer or file cannot be read."""
    try:
        texts: Sequence[str] = SAMPLE
        if options.text is not None:
            texts = [part.strip() for part in options.text.read_text("utf-8").split("\n\n") if part.strip()]
        report = align(
            _load(options.host),
            _load(options.detector or _asset("modernbert", "answerdotai/ModernBERT-base")),
            reference_tokenizer=_reference(options.reference),
            texts=texts,
            name=options.host,
        )
    except (OSError, ValueError, UnsupportedTokenizerError) as error:
        raise CommandError(str(error).splitlines()[0]) from error
    print(json.dumps(asdict(report), indent=1) if options.json else report.summary())
    return 0


def _load(source: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def _asset(name: str, hub_id: str) -> str:
    folder = asset_path(name)
    return hub_id if folder is None else str(folder)


def _reference(source: str | None) -> Any:
    """The training tokenizer; None where it is gated or not at hand and was not asked for by name."""
    if source is not None:
        return _load(source)
    try:
        return _load(_asset("llama31", REFERENCE_NAME))
    except (OSError, ValueError):
        return None
