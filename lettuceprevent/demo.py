"""The demonstration: three short contexts, each answered with and without the number detector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .check import check_text

if TYPE_CHECKING:
    from .hosts import Answer, Host

#: context and question
CASES = (
    (
        "Revenue was 2400 million in 2021 and 3100 million in 2022.",
        "By how much did revenue grow, in percent?",
    ),
    (
        "The old bridge was opened in 1932 and is 1,149 metres long. Two lanes carry cars, a third is for bicycles.",
        "Describe the bridge in three sentences: its length, its height, and what it cost.",
    ),
    (
        "Twelve people were injured when the storm reached the coast on March 5. Some 3,400 homes lost power.",
        "When did the storm come, how fast was the wind, and how many people were evacuated?",
    ),
)

PRICE = """\
What it costs: with the option `derived` off, the model cannot state a growth rate, a sum or a
difference, right or wrong, unless the context has that number; it has to say something else, which
a small model does not always do well. Prevention keeps numbers out that the context does not have.
It does not make a sentence true: a number of the context in the wrong place is not noticed. That is
why a number that turns out to be another one than the context's is taken back, and not held to it."""


def show(host: Host, *, max_new_tokens: int, color: bool) -> None:
    """Answer every case twice and print answers, difference, interventions, and where the time went."""
    from .cli import mark_difference

    decoding: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    plain_seconds = prevented_seconds = 0.0
    totals: dict[str, float] = {}
    invented = [0, 0]
    for number, (context, question) in enumerate(CASES, 1):
        print(f"== {number}. Context: {context}\n   Question: {question}", flush=True)
        prevention = {"detector_type": "number", "evidence": "text"}
        plain = host.answer(context, question, **decoding)
        prevented = host.answer(context, question, prevention=prevention, **decoding)
        plain_seconds += plain.seconds
        prevented_seconds += prevented.seconds
        for at, (title, answer) in enumerate((("without prevention", plain), ("with prevention", prevented))):
            wrong = _unsupported(context, question, answer)
            invented[at] += len(wrong)
            note = f"unsupported: {', '.join(wrong)}" if wrong else "no unsupported number"
            print(f"\n-- {title} ({note}; {answer.seconds:.1f} s)\n{answer.text}")
        print(f"\n-- the difference\n{mark_difference(plain.text, prevented.text, color=color)}")
        print("\n-- interventions and cost")
        print(f"{prevented.report.summary()}\n", flush=True)
        latency = prevented.report.timings.to_dict()
        totals["preparing"] = totals.get("preparing", 0.0) + latency["prepare_ms"]
        for stage, figures in latency["stages"].items():
            totals[stage] = totals.get(stage, 0.0) + figures["total_ms"]
    print(f"== Unsupported numbers: {invented[0]} without prevention, {invented[1]} with it.")
    _print_time(totals, plain_seconds, prevented_seconds)
    print(f"\n{PRICE}")


def _unsupported(context: str, question: str, answer: Answer) -> list[str]:
    """The unsupported numbers of an answer; one that the length limit cut is not judged."""
    verdicts = check_text(context, answer.text, query=question)
    end = len(answer.text) if answer.cut else -1
    return [verdict.text for verdict in verdicts if verdict.status == "unsupported" and verdict.end != end]


def _print_time(totals: dict[str, float], plain: float, prevented: float) -> None:
    names = {
        "preparing": "reading the contexts",
        "state": "following the answer",
        "mask": "looking up masks",
        "apply": "applying them",
    }
    print(f"== Where the time went: {plain:.1f} s without prevention, {prevented:.1f} s with it, of which")
    for stage, text in names.items():
        if stage in totals:
            print(f"   {totals[stage]:8.1f} ms  {text}")
