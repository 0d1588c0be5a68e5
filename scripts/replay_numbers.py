"""Real answers fed back through the number detector, token by token: what would have been stopped, rightly or not.

    python scripts/replay_numbers.py --out results/replay_numbers.json

Two data sets. number_mentions: every literal that contains a labelled mention is a unit, counted once; it is stopped if
any of its tokens, or the token that would end it, is blocked, and the text is fed on regardless. Verbatim literals (the
same whole literal stands in context or query) must never be stopped. host_answers: the share of numbers stopped per
task, and the most frequent stopped forms, written as a table next to the JSON document; a judgement written into its
last column is kept when the script is run again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import finish, parser, provenance, rows, tokenizer

from lettuceprevent.automaton import NumberDetector
from lettuceprevent.evaluation.numbers import ContextNumbers, Literal, check_answer, find_literals
from lettuceprevent.grounding import Grounding
from lettuceprevent.vocabulary import Vocabulary

FILES = ("number_mentions", "host_answers")
#: of the labels of several mentions in one literal the first counts
LABELS = ("unsupported", "derivable", "rounding_supported", "supported", "exempt")
ARMS: dict[str, dict[str, bool]] = {
    "default": {},
    "rounding": {"rounding": True},
    "derived": {"derived": True},
}


def host_tokenizer(host: str) -> str:
    """The asset with the host's tokenizer; Qwen3's stands for Qwen2.5's."""
    for part, name in (("qwen", "qwen3"), ("mistral", "mistral"), ("llama-2", "llama2")):
        if part in host.lower():
            return name
    raise SystemExit(f"host {host!r}: expected a Qwen, Mistral or Llama-2 model")


@dataclass(frozen=True)
class Step:
    """One token of an answer: its characters and what the detector said."""

    start: int
    end: int
    token: int
    blocked: bool
    inside: bool
    may_end: bool
    state: Any


class Replay:
    """Tokenizers, vocabularies, detectors and parsed contexts, made once."""

    def __init__(self) -> None:
        self._hosts: dict[str, tuple[Any, Vocabulary]] = {}
        self._detectors: dict[Any, NumberDetector] = {}
        self._numbers: dict[str, ContextNumbers] = {}
        self.skipped = 0

    def host(self, name: str) -> tuple[Any, Vocabulary]:
        if name not in self._hosts:
            made = tokenizer(name)
            self._hosts[name] = made, Vocabulary.for_tokenizer(made)
        return self._hosts[name]

    def numbers(self, row: dict[str, Any]) -> ContextNumbers:
        """The checker's view of context and query."""
        text = row["context"] + "\n\n" + row["query"]
        if text not in self._numbers:
            self._numbers[text] = ContextNumbers(text)
        return self._numbers[text]

    def detector(self, row: dict[str, Any], name: str, **options: bool) -> NumberDetector:
        key = (row["context"], row["query"], name, tuple(sorted(options)))
        if key not in self._detectors:
            if len(self._detectors) > 40:
                self._detectors.clear()
            grounding = Grounding((row["context"],), row["query"])
            self._detectors[key] = NumberDetector.for_grounding(grounding, self.host(name)[1], **options)
        return self._detectors[key]

    def steps(
        self, row: dict[str, Any], answer: str, **options: bool
    ) -> tuple[list[Step], NumberDetector, bool]:
        """Feed `answer`; also whether the text may end there."""
        name = host_tokenizer(row["host"])
        encoder, vocabulary = self.host(name)
        detector = self.detector(row, name, **options)
        state = detector.start(b"")
        found = []
        for start, end, token in spans(encoder, vocabulary, answer):
            blocked = detector.blocks(state, token)
            mask = detector.mask(state) if blocked else None
            inside = mask.inside if mask is not None else False
            found.append(Step(start, end, token, blocked, inside, detector.finish(state), state))
            state = detector.advance(state, token)
        return found, detector, detector.finish(state)


def spans(encoder: Any, vocabulary: Vocabulary, text: str) -> Iterator[tuple[int, int, int]]:
    """(first character, end, id) of the tokens of `text`; a character that is split belongs to all its tokens."""
    ids = encoder.encode(text, add_special_tokens=False)
    data = vocabulary.join(ids)
    lead = len(data) - len(text.encode())
    if data[max(lead, 0) :] != text.encode() or lead not in (0, 1):
        raise ValueError("the tokenizer changes this text")
    at = -lead
    owner = [-1] * lead
    for index, char in enumerate(text):
        owner += [index] * len(char.encode())
    for token in ids:
        size = len(vocabulary[token])
        if size:
            piece = owner[at + lead : at + lead + size]
            yield max(piece[0], 0), piece[-1] + 1, token
        at += size


def first_block(
    steps: list[Step], literal: tuple[int, int], others: list[Literal], may_end: bool
) -> Step | str | None:
    """The step at which the literal is stopped, "end" where only the end of the text is, else None."""
    start, end = literal
    for step in steps:
        if step.end <= start:
            continue
        if step.start < end:
            if step.blocked and not _belongs_to_earlier(step, start, others):
                return step
            if step.end > end:  # it ends within this token
                return None
            continue
        # the token that would end it; one that starts another literal may be blocked on that one's account
        shared = any(other.start < step.end and other.end > step.start for other in others)
        return step if step.blocked and (not shared or not step.may_end) else None
    return None if may_end else "end"


def _belongs_to_earlier(step: Step, start: int, others: list[Literal]) -> bool:
    """Whether a blocked token is blocked because it would end an earlier literal that may not end."""
    return (
        step.inside and not step.may_end and step.start < start and any(o.end == step.start for o in others)
    )


def mentions(replay: Replay, data: list[dict[str, Any]], **options: bool) -> dict[str, Any]:
    """Stopped shares by label, with each stopped supported, exempt or verbatim literal named."""
    total: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    forced = 0
    named: list[dict[str, Any]] = []
    let_through: list[dict[str, Any]] = []
    for row in data:
        answer = row["answer"]
        try:
            steps, detector, may_end = replay.steps(row, answer, **options)
        except ValueError:
            replay.skipped += 1
            continue
        numbers = replay.numbers(row)
        literals = [lit for lit in find_literals(answer) if lit.kind != "word"]
        for span, label, reasons in units(row, literals, numbers):
            if label == "other":
                continue
            cut = "truncated" in reasons
            where = first_block(steps, span, literals, may_end or cut)
            total[label] += 1
            stopped[label] += where is not None
            entry = describe(row, span, label, reasons, where, detector, numbers)
            if label == "unsupported" and where is None:
                let_through.append(entry)
            if where is None:
                continue
            forced += label == "unsupported" and isinstance(where, Step) and where.inside
            if label != "unsupported":
                named.append(entry)
    shares = {label: stopped[label] / total[label] for label in total}
    return {
        "total": dict(total),
        "stopped": dict(stopped),
        "shares": shares,
        "forced": forced,
        "named": named,
        "let_through": let_through,
    }


def units(
    row: dict[str, Any], literals: list[Literal], numbers: ContextNumbers
) -> Iterator[tuple[tuple[int, int], str, tuple[str, ...]]]:
    """(span, label, reasons) of each literal: its mentions' label, "verbatim", or "other"."""
    taken = set()
    for lit in literals:
        inside = [m for m in row["mentions"] if m["start"] < lit.end and m["end"] > lit.start]
        taken |= {(m["start"], m["end"]) for m in inside}
        labels = {m["label"] for m in inside}
        label = next((each for each in LABELS if each in labels), "")
        if not label:
            label = "verbatim" if lit.canon in numbers.raw else "other"
        yield (lit.start, lit.end), label, tuple(m["reason"] for m in inside)
    for m in row["mentions"]:
        if (m["start"], m["end"]) not in taken:
            yield (m["start"], m["end"]), m["label"], (m["reason"],)


def describe(
    row: dict[str, Any],
    span: tuple[int, int],
    label: str,
    reasons: tuple[str, ...],
    where: Step | str | None,
    detector: NumberDetector,
    numbers: ContextNumbers,
) -> dict[str, Any]:
    """A literal for the reader: where it stands, what the checker says, and the nearest form of the context."""
    answer = row["answer"]
    checked = [c for c in check_answer(answer, numbers) if c.start < span[1] and c.end > span[0]]
    entry: dict[str, Any] = {
        "id": row["id"],
        "label": label,
        "reasons": sorted(set(reasons)),
        "literal": answer[span[0] : span[1]],
        "answer": answer[max(0, span[0] - 40) : span[1] + 20],
        "checker": [c.status for c in checked],
    }
    if isinstance(where, Step):
        evidence = detector.explain(where.state, where.token)
        entry["stopped_at"] = answer[where.start : where.end]
        entry["inside"] = where.inside
        entry["nearest"] = evidence.nearest
        if evidence.span:
            text = row["context"]
            entry["nearest_context"] = text[max(0, evidence.span[0] - 30) : evidence.span[1] + 30]
    elif where:
        entry["stopped_at"] = "end of text"
    return entry


def answers(replay: Replay, data: list[dict[str, Any]]) -> dict[str, Any]:
    """host_answers: shares stopped per task and host, and the stopped forms."""
    total: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    forms: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    verbatim: Counter[str] = Counter()
    differ: list[dict[str, Any]] = []
    named: list[dict[str, Any]] = []
    for row in data:
        answer = row["answer"]
        try:
            steps, detector, _ = replay.steps(row, answer)
        except ValueError:
            replay.skipped += 1
            continue
        numbers = replay.numbers(row)
        literals = find_literals(answer)
        verdicts = {c.start: c.status for c in check_answer(answer, numbers, cut=True)}
        for lit in literals:
            # whether an answer that ends in a literal was cut there is not known: taken as cut
            where = first_block(steps, (lit.start, lit.end), literals, True)
            task = row["task_type"] if lit.kind != "word" else f"{row['task_type']} words"
            total[task] += 1
            stopped[task] += where is not None
            if lit.canon in numbers.raw and lit.kind != "word":
                verbatim["total"] += 1
                verbatim["stopped"] += where is not None
                if where is not None:
                    named.append(
                        describe(row, (lit.start, lit.end), "verbatim", (), where, detector, numbers)
                    )
            status = verdicts.get(lit.start, "")
            ok = status in ("supported", "exempt", "unfinished")
            if ok != (where is None) and lit.kind != "word":
                entry = describe(row, (lit.start, lit.end), status, (), where, detector, numbers)
                differ.append(entry)
            if where is not None:
                entry = describe(row, (lit.start, lit.end), status, (), where, detector, numbers)
                forms[lit.canon, row["task_type"]].append(entry)
    return {
        "total": dict(total),
        "stopped": dict(stopped),
        "shares": {task: stopped[task] / total[task] for task in total},
        "verbatim": dict(verbatim),
        "forms": sorted(forms.items(), key=lambda item: -len(item[1])),
        "differ": differ,
        "named": named,
    }


def table(found: dict[str, Any], path: Path, count: int = 100) -> None:
    """Write the most frequent stopped forms as Markdown; judgements already in `path` are kept."""
    kept = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 8 and cells[7]:
                kept[cells[1], cells[2]] = cells[7]
    lines = [
        "# Stopped numbers in real answers",
        "",
        "The most frequent literals of host_answers that the detector would have stopped, default options, grounding =",
        "context and query. Written by `scripts/replay_numbers.py`; the last column is a reader's judgement.",
        "",
        "| n | literal | task | checker | answer | nearest in the context | stopped at | judgement |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (form, task), entries in found["forms"][:count]:
        first = entries[0]
        near = first.get("nearest_context") or first.get("nearest") or ""
        cells = [
            len(entries), form, task, first["checker"][0] if first["checker"] else "", first["answer"], near,
            first.get("stopped_at", ""), kept.get((_cell(form), task), ""),
        ]  # fmt: skip
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "/").split())


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--limit", type=int, default=None, help="only so many answers of each file")
    options = arguments.parse_args()
    began = time.perf_counter()
    replay = Replay()
    labelled = rows(options.data, "number_mentions")[: options.limit]
    arms = {arm: mentions(replay, labelled, **settings) for arm, settings in ARMS.items()}
    default = arms["default"]
    for arm, found in arms.items():
        print(f"number_mentions, {arm}:")
        for label in (*LABELS, "verbatim"):
            if label in found["total"]:
                stopped, total = found["stopped"].get(label, 0), found["total"][label]
                print(f"  {label:20s} stopped {stopped:4d} of {total:4d}  {stopped / total:.1%}")
    print(f"unsupported, stopped inside a literal (forced): {default['forced']}\n")
    for title in ("named", "let_through"):
        print("stopped though not unsupported:" if title == "named" else "unsupported let through:")
        for entry in default[title]:
            print("  ", {key: value for key, value in entry.items() if value not in (None, [], "")})
    found = answers(replay, rows(options.data, "host_answers")[: options.limit])
    print("\nhost_answers:")
    for task in sorted(found["total"]):
        stopped, total = found["stopped"].get(task, 0), found["total"][task]
        print(f"  {task:20s} stopped {stopped:5d} of {total:5d}  {stopped / total:.1%}")
    print(f"  verbatim {found['verbatim']}, detector and checker differ on {len(found['differ'])}")
    for title in ("named", "differ"):
        for entry in found[title][:40]:
            shown = {key: value for key, value in entry.items() if value not in (None, [], "")}
            print("  verbatim stopped" if title == "named" else "  differ", shown)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        table(found, options.out.with_suffix(".md"))
    shares = default["shares"]
    document = {
        "unsupported_stopped": shares.get("unsupported"),
        "supported_stopped": shares.get("supported"),
        "exempt_stopped": shares.get("exempt"),
        "verbatim_stopped": shares.get("verbatim"),
        "forced": default["forced"],
        "arms": {
            arm: {key: found_[key] for key in ("total", "stopped", "shares")} for arm, found_ in arms.items()
        },
        "named": default["named"],
        "let_through": default["let_through"],
        "host_answers": {
            **{key: found[key] for key in ("total", "stopped", "shares", "verbatim")},
            "verbatim_named": found["named"],
            "differ": len(found["differ"]),
        },
        "skipped_answers": replay.skipped,
        "seconds": time.perf_counter() - began,
        "provenance": provenance(options.data, FILES),
    }
    finish(document, options.out)


if __name__ == "__main__":
    main()
