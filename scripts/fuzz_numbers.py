"""Soundness of the number detector (C1): random hosts under governance, judged by the independent checker.

    python scripts/fuzz_numbers.py --generations 5000 --out results/fuzz_numbers.json

A host here is a table of random rows of logits, looked up by a hash of the last ids: flat or peaked, with digit,
separator, scale, month, mark and number-word tokens raised, and with a bent to go on copying from its prompt, a
few snippets of the context around its numbers. Contexts are news, passages and records of businesses. Every
decoding mode is used: greedy, sampling with top-k and top-p, beam search, assisted decoding and prompt lookup, in
left-padded batches of different contexts where the mode allows it, on both settings of `on_unsupported`. A
violation is an ended digit-form literal that the checker does not find supported; each is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import random
import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _common import TOKENIZERS, finish, parser, provenance, rows, tokenizer
from _hosts import Host, HostConfig

from lettuceprevent import lexicon_en as lexicon
from lettuceprevent.automaton import NumberDetector
from lettuceprevent.evaluation.number_metrics import REFUSED
from lettuceprevent.evaluation.numbers import ContextNumbers, check_answer, scan
from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.report import PreventionReport
from lettuceprevent.vocabulary import Vocabulary

FILES = ("summary_prompts", "host_answers")
TABLE = 192  # rows of logits per host
BATCH = 8
#: mode -> share of the generations
MODES = {"greedy": 0.34, "top_k": 0.24, "top_p": 0.08, "beam": 0.14, "assisted": 0.08, "prompt_lookup": 0.12}
SINGLE = ("assisted", "prompt_lookup")


class RandomHost(Host):
    """Logits that are a pseudo-random function of the last three ids, and of where they stand in the prompt."""

    def __init__(self, config: HostConfig, raised: dict[str, list[int]] | None = None, eos: int = 0):
        super().__init__(config)
        generator = torch.Generator().manual_seed(config.seed)
        table = torch.randn(TABLE, config.vocab_size, generator=generator, dtype=torch.float32)
        rng = random.Random(config.seed)
        for row in table:
            chosen = [
                token for name, count in PICKS.items() for token in rng.choices((raised or {})[name], k=count)
            ]
            row[chosen] += config.peak
            if rng.random() < 0.08:
                row[eos] += config.peak + 1
        self.table = table
        #: after these, or to get to them, it copies more
        self.matter = frozenset(
            token for name in ("digit", "blank") for token in (raised or {}).get(name, ())
        )

    def following(self, ids: list[list[int]], keep: int) -> torch.Tensor:
        """Logits (rows, keep, vocabulary), by a hash of the last three ids and of what can be copied."""
        width = len(ids[0])
        picks, copies = [], []
        for at, row in enumerate(ids):
            for back in range(keep):
                end = width - keep + back + 1
                a, b, c = (0, 0, *row[max(0, end - 3) : end])[-3:]
                hashed = (
                    a * 73_856_093 ^ b * 19_349_663 ^ c * 83_492_791 ^ self.config.seed * 2_654_435_761
                ) >> 5
                picks.append(hashed % TABLE)
                follower = self._copied(row, end, hashed >> 9)
                if follower >= 0:
                    copies.append((at * keep + back, follower))
        logits = self.table[picks]
        for at, follower in copies:
            logits[at, follower] += 2 * self.config.peak
        return logits.view(len(ids), keep, -1)

    def _copied(self, row: list[int], end: int, dice: int) -> int:
        """An id that went on from the last one earlier in `row`, or one that opens a number there; mostly -1."""
        last, chance = row[end - 1], dice % 100
        matter = last in self.matter
        if chance >= 100 * self.config.copy * (2 if matter else 1):
            return -1
        begin = max(0, end - 400)
        if matter or chance % 2:
            places = [at + 1 for at in range(begin, end - 1) if row[at] == last]
        else:
            places = [
                at - 1
                for at in range(begin + 1, end)
                if row[at] in self.matter and row[at - 1] not in self.matter
            ]
        return row[places[dice // 100 % len(places)]] if places else -1


#: how many tokens of each class a row of the table raises
PICKS = {
    "digit": 6, "context": 6, "separator": 4, "scale": 2, "month": 2, "word": 2, "suffix": 3, "blank": 2, "other": 6,
}  # fmt: skip


def classes(vocabulary: Vocabulary) -> dict[str, list[int]]:
    """Tokens by what they may do to a number."""
    text = {i: vocabulary[i].decode("utf-8", "replace") for i in range(len(vocabulary)) if vocabulary[i]}
    months = {**lexicon.MONTHS, **lexicon.MONTH_ABBREVIATIONS}
    words = {
        **lexicon.ONES, **lexicon.TEENS, **lexicon.TENS, **lexicon.HUNDRED, **lexicon.DOZEN, **lexicon.ORDINALS,
    }  # fmt: skip
    scales = {*lexicon.SCALES, *lexicon.SCALE_ABBREVIATIONS}
    suffixes = {
        *lexicon.ORDINAL_SUFFIXES, "s", *lexicon.PERCENT_WORDS, *lexicon.CURRENCY_WORDS, *lexicon.AM, *lexicon.PM,
        "%", "a", "p", "m", "km", "°", "c", "x",
    }  # fmt: skip
    beginnings = {word[:cut] for word in words for cut in (3, 4, 5, 6)} - {""}
    found: dict[str, list[int]] = {name: [] for name in PICKS}
    for token, raw in text.items():
        bare = raw.strip().lower()
        if re.fullmatch(r"[\d²³½¼¾①-⑨０-９٠-٩]+", bare):
            found["digit"].append(token)
        elif bare and set(bare) <= set(".,:/-–−+$€£%()[]#*'\"") and len(bare) <= 2:
            found["separator"].append(token)
        elif bare in scales:
            found["scale"].append(token)
        elif bare in months:
            found["month"].append(token)
        elif bare in words or (bare in beginnings and len(bare) > 2):
            found["word"].append(token)
        elif bare in suffixes:
            found["suffix"].append(token)
        elif not bare and len(raw) <= 2:
            found["blank"].append(token)
    rng = random.Random(5)
    found["other"] = rng.sample(sorted(text), 4000)
    return found


@dataclass
class Totals:
    """What all runs came to."""

    counts: Counter[str] = field(default_factory=Counter)
    by_mode: dict[str, Counter[str]] = field(default_factory=dict)
    violations: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    dead: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Take in what another worker found."""
        self.counts.update(other.counts)
        for mode, counter in other.by_mode.items():
            self.by_mode.setdefault(mode, Counter()).update(counter)
        self.violations += other.violations
        self.words += other.words
        self.dead += other.dead


class Fuzzer:
    """Hosts and contexts of one tokenizer."""

    def __init__(self, name: str, seed: int, tokens: int) -> None:
        self.name = name
        self.tokenizer = tokenizer(name)
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.vocabulary = Vocabulary.for_tokenizer(self.tokenizer)
        self.rng = random.Random(seed)
        self.seed = seed
        self.tokens = tokens
        self.raised = classes(self.vocabulary)
        self.eos = int(self.tokenizer.eos_token_id)
        self.numbers: dict[str, ContextNumbers] = {}

    def hosts(self, contexts: list[dict[str, Any]], number: int) -> tuple[RandomHost, RandomHost]:
        """A host and its assistant. Every other host is peaked."""
        width = 64 * (-(-len(self.vocabulary) // 64))  # logits wider than the tokenizer
        ids = {
            token
            for row in contexts
            for lit in scan(row["context"])[:40]
            for token in self.tokenizer.encode(f" {lit.text} ({lit.text}", add_special_tokens=False)
        }
        raised = {**self.raised, "context": sorted(ids) or self.raised["digit"]}
        peak = 9.0 if number % 2 else 5.0 if width > 100_000 else 4.0
        made = []
        for offset, copy in ((0, 0.75), (0, 0.6)):
            config = HostConfig(width, self.seed * 1000 + number + offset, peak, copy)
            config.eos_token_id = self.eos
            config.pad_token_id = self.tokenizer.pad_token_id
            host = RandomHost(config, raised, self.eos)
            host.generation_config.eos_token_id = self.eos
            host.generation_config.pad_token_id = self.tokenizer.pad_token_id
            made.append(host.eval())
        return made[0], made[1]

    def prompt(self, context: str) -> str:
        """Snippets of the context around some of its numbers; ends in various ways."""
        literals = scan(context)
        parts = []
        for lit in self.rng.sample(literals, min(len(literals), self.rng.randint(1, 6))):
            parts.append(context[max(0, lit.start - 24) : lit.end + 24])
        return "Notes: " + " ... ".join(parts) + self.rng.choice(["\n", "\nSummary: ", "\nIn short:", "\n- "])

    def run(
        self, batch: list[dict[str, Any]], number: int, mode: str, governed: bool, totals: Totals
    ) -> None:
        """Generate from `batch` and judge what comes."""
        host, assistant = self._hosts
        prompts = [self.prompt(row["context"]) for row in batch]
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        ids, attention = inputs["input_ids"], inputs["attention_mask"]
        settings: dict[str, Any] = {
            "greedy": {},
            "top_k": {"do_sample": True, "top_k": 50, "temperature": 1.3},
            "top_p": {"do_sample": True, "top_k": 200, "top_p": 0.95},
            "beam": {"num_beams": 4},
            "assisted": {"assistant_model": assistant},
            "prompt_lookup": {"prompt_lookup_num_tokens": 4},
        }[mode]
        fixed = {"max_new_tokens": self.tokens, "do_sample": False, "attention_mask": attention}
        arguments = fixed | settings
        torch.manual_seed(number)
        report = PreventionReport()
        avoid = "avoid" if number % 3 else "substitute"
        began = time.perf_counter()
        with torch.no_grad():
            if governed:
                out = self._governed(host, ids, batch, avoid, report, arguments)
            else:
                out = host.generate(ids, **arguments)
        totals.counts["seconds" if governed else "seconds_ungoverned"] += time.perf_counter() - began
        if governed:
            self._count(report, totals, mode)
        for index, row in enumerate(batch):
            self._judge(ids[index], out[index], row, index, mode, avoid, governed, report, totals)

    def _governed(
        self, host: Any, ids: Any, batch: list[dict[str, Any]], avoid: str, report: Any, arguments: Any
    ) -> Any:
        """What a user calls: one argument more than plain generate()."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the prompt shows snippets of the context, not its beginning
            return generate(
                host,
                ids,
                tokenizer=self.tokenizer,
                input_text=[[row["context"]] for row in batch],
                on_unsupported=avoid,
                evidence="none",
                report=report,
                **arguments,
            )

    def _count(self, report: PreventionReport, totals: Totals, mode: str) -> None:
        totals.counts["blocked_first_choices"] += report.counters["penalised"]
        totals.counts["steps"] += report.counters["steps"]
        totals.counts["forced"] += report.counters["forced"]
        for key, value in report.counters.items():
            if key.startswith("dead") or key == "no_way_out":
                totals.counts[f"steps_{key}"] += value
        totals.counts["word_leaks"] += sum(item.word_leaks for item in report.sequences)
        totals.counts["reported_unfinished"] += sum(item.unfinished for item in report.sequences)
        totals.counts["dead"] += sum(item.dead for item in report.sequences)

    def _judge(
        self, prompt: Any, out: Any, row: dict[str, Any], index: int, mode: str, avoid: str, governed: bool,
        report: PreventionReport, totals: Totals,
    ) -> None:  # fmt: skip
        prompt_ids, answer_ids = prompt.tolist(), out.tolist()[len(prompt) :]
        ended = self.eos in answer_ids
        if ended:
            answer_ids = answer_ids[: answer_ids.index(self.eos)]
        prefix, answer = self._texts(prompt_ids, answer_ids, totals)
        context = row["context"]
        if context not in self.numbers:
            self.numbers[context] = ContextNumbers(context)
        checked = check_answer(answer, self.numbers[context], cut=not ended, prefix=prefix)
        digits = [c for c in checked if c.kind != "word"]
        finished = [c for c in digits if c.status != "unfinished"]
        if not governed:
            totals.counts["ungoverned"] += 1
            totals.counts["ungoverned_literals"] += len(finished)
            totals.counts["ungoverned_unsupported"] += sum(c.status in REFUSED for c in finished)
            return
        per_mode = totals.by_mode.setdefault(mode, Counter())
        for counter in (totals.counts, per_mode):
            counter["generations"] += 1
            counter["ended"] += ended
            counter["literals"] += len(finished)
            counter["unfinished"] += len(digits) - len(finished)
            counter["exempt"] += sum(c.status == "exempt" for c in digits)
        totals.counts["word_literals"] += len(checked) - len(digits)
        dead = report.sequences[index].dead if index < len(report.sequences) else 0
        for c in checked:
            if c.status not in REFUSED:
                continue
            found = {
                "tokenizer": self.name,
                "mode": mode,
                "on_unsupported": avoid,
                "literal": c.text,
                "kind": c.kind,
                "status": c.status,
                "answer": (prefix + answer)[max(0, len(prefix) + c.start - 30) : len(prefix) + c.end + 12],
                "context": _nearby(context, c.text),
                "context_id": row["id"],
                "dead": dead,
                "ended": ended,
            }
            if c.kind == "word":
                totals.counts["words_unsupported"] += 1
                totals.words.append(found)
            elif dead:
                totals.counts["in_dead_rows"] += 1
                totals.dead.append(found)
            else:
                totals.counts["violations"] += 1
                per_mode["violations"] += 1
                totals.violations.append(found)

    def _texts(self, prompt_ids: list[int], answer_ids: list[int], totals: Totals) -> tuple[str, str]:
        """The prompt's text since its last blank, and the answer, by the tokenizer's own decoding."""
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        before = self.tokenizer.decode(prompt_ids, **options)
        whole = self.tokenizer.decode(prompt_ids + answer_ids, **options)
        if whole.startswith(before):
            answer = whole[len(before) :]
        else:
            totals.counts["decoded_apart"] += 1
            answer = self.vocabulary.join(answer_ids).decode("utf-8", "replace")
        return re.split(r"\s", before)[-1], answer

    def start(self, number: int, contexts: list[dict[str, Any]]) -> None:
        """Use other hosts."""
        self._hosts = self.hosts(contexts, number)


def _nearby(context: str, literal: str) -> str:
    """Where the context has the digits of `literal`, or else a few of its numbers."""
    digits = re.search(r"\d+", literal)
    at = context.find(digits[0]) if digits else -1
    if at >= 0:
        return context[max(0, at - 40) : at + 40]
    return " | ".join(lit.text for lit in scan(context)[:12])


def plan(generations: int, rng: random.Random) -> list[tuple[str, int]]:
    """(mode, rows) for all batches of one tokenizer, mixed."""
    batches = []
    for mode, share in MODES.items():
        left = max(1, round(generations * share))
        while left > 0:
            size = 1 if mode in SINGLE else min(BATCH, left)
            batches.append((mode, size))
            left -= size
    rng.shuffle(batches)
    return batches


def _keep_detectors(kept: dict[Any, Any]) -> None:
    """Let one detector serve all generations of a grounding: it is a function of grounding and vocabulary."""
    build = NumberDetector.for_grounding

    def for_grounding(grounding: Grounding, vocabulary: Vocabulary, **options: Any) -> Any:
        key = (grounding, vocabulary.fingerprint, tuple(sorted(options.items())))
        if key not in kept:
            kept[key] = build(grounding, vocabulary, **options)
        return kept[key]

    NumberDetector.for_grounding = for_grounding  # type: ignore[method-assign,assignment]


def _keep_memory() -> None:
    """Let glibc keep large blocks: half the time would go into handing logits back and forth."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError):
        pass


def _contexts(data: Path) -> list[list[dict[str, Any]]]:
    """News, passages and records of businesses: of each, one row per context with numbers."""
    kinds: dict[str | None, dict[str, Any]] = {None: {}, "QA": {}, "Data2txt": {}}
    for file in FILES:
        for row in rows(data, file):
            kinds.get(row.get("task_type"), {})[row["context"]] = row
    return [[row for context, row in kind.items() if scan(context)] for kind in kinds.values()]


def work(names: list[str], options: argparse.Namespace) -> Totals:
    """All generations with the tokenizers `names`."""
    _keep_memory()
    detectors: dict[Any, Any] = {}
    _keep_detectors(detectors)
    torch.set_num_threads(1)  # the tensors are small: threads only wait for each other
    kinds = _contexts(options.data)
    totals = Totals()
    began = time.perf_counter()
    for name in names:
        rng = random.Random(f"{options.seed} {name}")
        fuzzer = Fuzzer(name, options.seed, options.tokens)
        pool = [
            row for kind in kinds for row in rng.sample(kind, min(len(kind), options.contexts // len(kinds)))
        ]
        share = round(options.generations / len(options.tokenizers))
        for number, (mode, size) in enumerate(plan(share, rng)):
            if number % 60 == 0:
                detectors.clear()  # masks of large vocabularies take a megabyte each
            if number % 24 == 0:
                fuzzer.start(number, pool)
            batch = rng.sample(pool, min(size, len(pool)))
            seen = len(totals.violations)
            fuzzer.run(batch, number, mode, True, totals)
            if number % 12 == 0:
                fuzzer.run(batch, number, mode, False, totals)
            for violation in totals.violations[seen : max(seen, options.show)]:
                print("VIOLATION", violation, flush=True)
        done = {key: round(totals.counts[key]) for key in ("generations", "literals", "violations", "dead")}
        print(f"{name}: done after {time.perf_counter() - began:.0f} s, so far {done}", flush=True)
    return totals


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--generations", type=int, default=5000)
    arguments.add_argument("--tokens", type=int, default=64, help="longest answer")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--tokenizers", nargs="+", default=list(TOKENIZERS))
    arguments.add_argument("--contexts", type=int, default=24, help="contexts per tokenizer")
    arguments.add_argument("--show", type=int, default=40, help="how many violations are printed per worker")
    arguments.add_argument("--workers", type=int, default=2)
    options = arguments.parse_args()
    began = time.perf_counter()
    # The large vocabularies last, dealt out so that the workers end together.
    hands = [options.tokenizers[at :: options.workers] for at in range(options.workers)]
    hands = [hand for hand in hands if hand]
    if len(hands) == 1:
        totals = work(hands[0], options)
    else:
        totals = Totals()
        with multiprocessing.get_context("spawn").Pool(len(hands)) as pool:
            for part in pool.starmap(work, [(hand, options) for hand in hands]):
                totals.add(part)
    report(totals, options, time.perf_counter() - began)


def report(totals: Totals, options: Any, seconds: float) -> None:
    count = totals.counts
    free = count["ungoverned_literals"] / max(1, count["ungoverned"])
    print(f"\n{count['generations']} generations in {seconds:.0f} s, {count['steps']} steps")
    print(f"literals ended {count['literals']} ({count['exempt']} exempt), unfinished {count['unfinished']}")
    print(f"first choices blocked {count['blocked_first_choices']}, of them forced {count['forced']}")
    print(f"ungoverned: {free:.1f} literals an answer, {count['ungoverned_unsupported']} unsupported")
    print(f"words: {count['word_literals']} literals, {count['words_unsupported']} unsupported")
    print(f"violations {count['violations']}, dead {count['dead']}")
    for mode, counter in totals.by_mode.items():
        print(f"  {mode:14s} {dict(counter)}")
    for title, examples in (("word", totals.words), ("dead", totals.dead)):
        for example in examples[:10]:
            print(f"  {title}", example)
    document = {
        "generations": count["generations"],
        "violations": count["violations"],
        "literals": count["literals"],
        "blocked_first_choices": count["blocked_first_choices"],
        "unfinished": count["unfinished"],
        "dead": count["dead"],
        "forced": count["forced"],
        "exempt": count["exempt"],
        "steps": count["steps"],
        "ended_answers": count["ended"],
        "word_literals": count["word_literals"],
        "words_unsupported": count["words_unsupported"],
        "dead_causes": {key: value for key, value in count.items() if key.startswith("steps_")},
        "word_leaks": count["word_leaks"],
        "decoded_apart": count["decoded_apart"],
        "literals_per_ungoverned_answer": free,
        "by_mode": {mode: dict(counter) for mode, counter in totals.by_mode.items()},
        "violation_examples": totals.violations[:50],
        "dead_examples": totals.dead[:10],
        "seconds": seconds,
        "provenance": provenance(options.data, FILES),
    }
    finish(document, options.out)


if __name__ == "__main__":
    main()
