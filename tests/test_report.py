from __future__ import annotations

import json
import math

import pytest
import torch
from fakes import DigitDetector, make_tokenizer

from lettuceprevent.grounding import Grounding
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.report import SCHEMA_VERSION, PreventionReport, Timings, percentile
from lettuceprevent.vocabulary import Vocabulary

CONTEXT = "In 2021 there were 12."


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.for_tokenizer(make_tokenizer())


class WithEvidence(DigitDetector):
    def explain(self, state, token_id):
        found = super().explain(state, token_id)
        return type(found)(literal=found.literal, nearest="2021", span=(3, 7))


def some_id(vocabulary, text):
    return next(i for i in range(len(vocabulary)) if vocabulary[i] == text.encode())


def ran(vocabulary, **options):
    """A processor that has seen the host want 2 0 9 (forced to 2) and then 9 at a start (avoided)."""
    options = {"eos_token_ids": 2, "prompt_length": 1, **options}
    detector = WithEvidence(vocabulary, ("2021", "12"))
    processor = PreventionLogitsProcessor(vocabulary, [Grounding((CONTEXT,))], [[detector]], **options)
    two, zero, nine, one, blank = (some_id(vocabulary, text) for text in "2091 ")
    ids = [40]
    for wanted, came in ((two, two), (zero, zero), (nine, two), (one, one), (blank, blank), (nine, blank)):
        scores = torch.zeros(1, len(vocabulary))
        scores[0, wanted] = 30.0
        processor(torch.tensor([ids]), scores)
        ids.append(came)
    return processor, ids


def test_interventions_and_counters(vocabulary):
    processor, ids = ran(vocabulary)
    report = processor.report
    forced, avoided = report.interventions
    assert (forced.action, forced.history_length, forced.step, forced.text) == ("forced", 2, 2, "9")
    assert (forced.literal, forced.nearest, forced.span, forced.evidence) == ("209", "2021", (3, 7), None)
    assert (forced.detector, forced.version, forced.label, forced.score) == (
        "digits",
        "test",
        "unsupported",
        None,
    )
    assert (avoided.action, avoided.history_length, avoided.first_choice) == ("avoided", 5, True)
    assert {key: report.counters[key] for key in ("steps", "checked", "penalised", "forced", "dead")} == {
        "steps": 6, "checked": 6, "penalised": 2, "forced": 1, "dead": 0,
    }  # fmt: skip
    assert [item.returned for item in report.interventions] == [None, None]
    processor.finish([ids])
    assert [item.returned for item in report.interventions] == [True, True]
    assert report.sequences[0].interventions == 2
    processor.finish([[40, 41, 42, 43]])
    assert report.sequences[1].interventions == 0


def test_evidence_text_only_where_asked_for(vocabulary):
    assert ran(vocabulary, evidence="text")[0].report.interventions[0].evidence == "2021"
    nothing = ran(vocabulary, evidence="none")[0].report.interventions[0]
    assert (nothing.span, nothing.nearest, nothing.evidence) == (None, None, None)


def test_json(vocabulary, tmp_path):
    report = ran(vocabulary)[0].report
    path = tmp_path / "report.json"
    found = json.loads(report.to_json(path))
    assert json.loads(path.read_text()) == found
    assert found["schema_version"] == SCHEMA_VERSION
    assert found["options"]["penalty"] is None  # JSON has no infinity
    assert found["interventions"][0]["span"] == [3, 7]
    assert set(found["latency"]["stages"]) == {"state", "mask", "apply", "total"}
    assert 0 < found["latency"]["stages"]["total"]["share"] <= 1
    assert report.to_dict()["options"]["penalty"] == -math.inf


def test_summary_and_repr(vocabulary):
    report = ran(vocabulary)[0].report
    text = report.summary()
    assert "6 steps, 6 checked, 0 skipped; first choice penalised at 2 (1 forced)" in text
    assert "'209' is unsupported; the context has '2021' at 3-7" in text
    assert "cost per step: median" in text
    assert repr(report) == "<PreventionReport: 6 steps, 2 penalised>"
    assert "no step was timed" in PreventionReport().summary()


def test_a_report_collects_runs_and_resets(vocabulary):
    report = PreventionReport()
    ran(vocabulary, report=report)
    ran(vocabulary, report=report)
    assert report.runs == 2
    assert [item.run for item in report.interventions] == [1, 1, 2, 2]
    report.reset()
    assert (report.runs, report.interventions, report.counters["steps"]) == (0, [], 0)


def test_dead_literals_are_named_with_their_cause(vocabulary):
    processor = ran(vocabulary, report=(report := PreventionReport()))[0]
    two, nine = some_id(vocabulary, "2"), some_id(vocabulary, "9")
    for ids in ([40], [40, two], [40, two, nine]):
        processor(torch.tensor([ids]), torch.zeros(1, len(vocabulary)))
    assert "1 literals could not be kept supported (external 1)" in report.summary()


def test_timings():
    timings = Timings()
    for value in range(1, 101):
        timings.add(value, value, 0, value, 1000 * value)
    timings.elapsed_ns = 10_100_000
    figures = timings.to_dict()["stages"]
    assert "detector" not in figures
    assert figures["total"] == {
        "steps": 100, "p50_us": 50.0, "p95_us": 95.0, "max_us": 100.0, "total_ms": 5.05, "share": 0.5,
    }  # fmt: skip
    assert percentile([7], 0.95) == 7
