from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluation import make_line
from fakes import ScriptedDetector, make_llama, make_probe, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st

import lettuceprevent.detectors
from lettuceprevent.candidates import CandidateCheck
from lettuceprevent.cli import main
from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.evaluation.degeneration import shape
from lettuceprevent.evaluation.evaluate import EvaluatedHost
from lettuceprevent.evaluation.prompts import Prompt, Prompts
from lettuceprevent.evaluation.recorded import Cost, Limits, Point, cost, pick
from lettuceprevent.evaluation.score import score_prompt
from lettuceprevent.evaluation.tune import (
    Answer,
    PointResult,
    Tuner,
    document,
    make_profile,
    recommend,
    table,
    tune,
)
from lettuceprevent.grounding import Grounding
from lettuceprevent.profiles import Profile
from lettuceprevent.trace import TraceStep

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."
PROMPTS = [
    Prompt(str(n), (CONTEXT,), f"{what}?")
    for n, what in enumerate(["And", "What of 12 cats", "Who", "The quick brown fox", "How many birds"])
]
SKIPS = (0.3, 0.5, 0.7, 0.9, 1.0)


@pytest.fixture(scope="module")
def host():
    """A host that is often sure of a digit: only there does a skip change an answer."""
    tokenizer = make_tokenizer()
    model = make_llama(len(tokenizer), seed=0, peak=3)
    digits = [at for at in range(len(tokenizer)) if re.search(r"\d", tokenizer.convert_ids_to_tokens(at))]
    with torch.no_grad():
        model.lm_head.weight[digits] *= 1.5
    return EvaluatedHost(model, tokenizer, "tiny")


@pytest.fixture
def scripted(monkeypatch):
    """`detector_type="lettucedetect"` is a detector whose verdicts are made up from path and candidate."""

    def judge(history, token):
        return (token * 37 + 11 * sum(history) + 5 * len(history)) % 101 / 100

    monkeypatch.setitem(
        lettuceprevent.detectors._BUILDERS, "lettucedetect", lambda *_: ScriptedDetector(judge)
    )


@pytest.mark.parametrize("policy", ["avoid", "substitute", "retract"])
def test_the_grid_is_what_real_generations_give(host, policy):
    points = [Point(skip) for skip in SKIPS]
    tuner, real = (
        Tuner(host, {"on_unsupported": policy}, 40, simulate=simulate) for simulate in (True, False)
    )
    simulated = 0
    for prompt in PROMPTS:
        found, generated = tuner.answers(prompt, points), real.answers(prompt, points)
        for point in points:
            assert found[point].text == generated[point].text, point
            assert found[point].unsupported == generated[point].unsupported
            assert found[point].cost.skipped == generated[point].cost.skipped
            assert found[point].cost.steps == generated[point].cost.steps
            simulated += found[point].simulated
    assert real.generations == len(PROMPTS) * len(points)
    assert simulated == real.generations - tuner.generations > 0  # something was saved
    assert tuner.generations > len(PROMPTS)  # and something had to be generated: the test can fail


def test_model_detectors_on_three_axes(host, scripted):
    points = [Point(skip, conf, k) for skip in (0.6, 1.0) for conf in (0.5, 0.8, 0.95) for k in (4, 10)]
    options = {"detector_type": "lettucedetect"}
    tuner, real = (Tuner(host, options, 16, simulate=simulate) for simulate in (True, False))
    for prompt in PROMPTS[:3]:
        found, generated = tuner.answers(prompt, points), real.answers(prompt, points)
        for point in points:
            assert found[point].text == generated[point].text, point
    assert tuner.generations < real.generations


@pytest.mark.parametrize("detector", ["lettucedetect", "number+lettucedetect"])
def test_the_gate_as_an_axis(host, scripted, detector):
    grid = itertools.product((0.6, 1.0), (0.8, 0.95), (0.0, 0.2, 0.5, 0.8, 1.0))
    points = [Point(skip, conf, 8, gate) for skip, conf, gate in grid]
    options = {"detector_type": detector, "gate": "probe", "probe": make_probe(host.model)}
    tuner, real = (Tuner(host, options, 20, simulate=simulate) for simulate in (True, False))
    gated, different = 0, set()
    for prompt in PROMPTS[:3]:
        found, generated = tuner.answers(prompt, points), real.answers(prompt, points)
        for point in points:
            assert found[point].text == generated[point].text, point
            assert found[point].cost.skipped == generated[point].cost.skipped, point
            gated += point.gate_threshold == 0.5 and 0 < found[point].cost.skipped < found[point].cost.steps
        different |= {generated[point].text for point in points if point.skip_threshold == 1.0}
        never = Point(1.0, 0.8, 8, 1.0)
        assert generated[never].cost.skipped == generated[never].cost.steps
    assert tuner.generations < real.generations and gated > 0
    assert len(different) > 3  # the gate changes answers: the test can fail


@given(st.data())
def test_a_pick_is_what_the_processor_picks(data):
    """The rule, against `CandidateCheck` itself, on any verdicts and for any limits."""
    size = 24
    order = data.draw(st.permutations(range(size)))
    verdicts = data.draw(st.lists(st.sampled_from([0.1, 0.5, 0.9, 0.95]), min_size=size, max_size=size))
    ends = frozenset(data.draw(st.sets(st.integers(0, size - 1), max_size=2)))
    logits = torch.empty(1, size)
    logits[0, torch.tensor(order)] = torch.arange(size, 0, -1).float()

    def run(limits):
        check = CandidateCheck(
            [ScriptedDetector(lambda _, token: verdicts[token])],
            count=limits.count,
            threshold=limits.threshold,
            keep_unscored=limits.keep_unscored,
            penalty=np.inf,
            on_error="raise",
            ends=ends,
            vocabulary=["x"] * size,
        )
        out = logits.clone()
        request = ScoreRequest(Grounding(("c",)), (), ())
        from collections import Counter

        check.check(out, [0], [request], [order[0]], Counter())
        return int(out.argmax()), check.last[0]

    def draw():
        threshold = data.draw(st.sampled_from([0.05, 0.3, 0.8, 0.92]))
        return Limits(threshold, data.draw(st.integers(1, 8)), ends, data.draw(st.booleans()))

    recorded, asked = draw(), draw()
    _, row = run(recorded)
    step = TraceStep(
        run=1,
        call=0,
        row=0,
        node=None,
        first=order[0],
        chance=0.5,
        choice=0,
        checked=True,
        action="",
        tokens=(),
        scores=(),
        after=(),
        log_total=0.0,
        seen=tuple(row.seen),
        found={token: (score, "scripted") for token, (score, _) in row.found.items()},
        began=0,
        ended=0,
        stages=(0, 0, 0, 0),
        host=0,
    )
    picked = pick(step, asked)
    assert picked is None or picked == run(asked)[0]
    if not asked.keep_unscored and len(row.seen) >= 3 * asked.count:
        assert picked is not None


def test_costs(host):
    tuner = Tuner(host, {}, 20)
    recording = tuner.record(PROMPTS[0], Point(1.0))
    full, none = cost(recording, Point(1.0)), cost(recording, Point(0.0))
    assert 0 < full.host < full.whole <= recording.seconds * 1e9
    assert (full.skipped, none.skipped) == (0, full.steps)
    assert full.whole > none.whole > full.host == none.host
    assert (
        sum(step.host for step in recording.steps) + sum(step.ended - step.began for step in recording.steps)
        == full.whole
    )


def result(skip, unsupported, ratio, failed=()):
    answer = Answer("x", 1, unsupported, shape("x", 1), 1.0, Cost(100, int(100 * ratio), 0, 1))
    return PointResult(Point(skip), [answer], list(failed))


def test_recommendation():
    a, b, c = result(0.5, 3, 1.1), result(0.9, 1, 1.15), result(1.0, 0, 1.4)
    assert recommend([a, b, c], 1.2) == (b, True)
    assert recommend([a, b, c], 1.5) == (c, True)
    assert recommend([a, b, c], 1.05) == (a, False)
    assert recommend([a, replace_failed(b), c], 1.2) == (a, True)
    assert recommend([replace_failed(a)], 1.2) == (None, False)
    assert recommend([result(0.5, 1, 1.1), result(0.9, 1, 1.05)], 1.2)[0].point.skip_threshold == 0.9
    assert recommend([result(0.5, 1, 1.05), result(0.9, 1, 1.1)], 1.2)[0].point.skip_threshold == 0.5
    assert recommend([result(0.5, 1, 1.05), result(0.9, 1, 1.055)], 1.2)[0].point.skip_threshold == 0.9


def replace_failed(item):
    return replace(item, failed=["80% of its answers are degenerate"])


def test_table_and_profile(host):
    prompts = Prompts(tuple(PROMPTS[:2]), "mine.jsonl", "abc", {})
    tuner = Tuner(host, {"units": False}, 12)
    said = []
    tuned = tune(tuner, prompts.prompts, [Point(0.5), Point(1.0), Point(1.0)], budget=50.0, say=said.append)
    assert [point.point.skip_threshold for point in tuned.points] == [1.0, 0.5]
    assert "2/2 prompts" in said[-1]
    text = table(tuned, 50.0)
    assert text.count("\n| skip ") == 2 and "| plain |" in text
    tuned = replace(tuned, chosen=tuned.points[0], within_budget=True)  # the gate may fail so tiny a host
    profile = make_profile(tuner, tuned, prompts, 50.0)
    policy = profile.options.pop("on_unsupported")
    assert policy in ("avoid", "retract")  # the default, named
    assert profile.options == {"units": False, "skip_threshold": 1.0}
    assert profile.data == {"source": "mine.jsonl", "sha256": "abc", "prompts": 2}
    assert profile.detector["versions"] == {"number": profile.detector["versions"]["number"]}
    cut = tune(tuner, prompts.prompts, [Point(1.0)], budget=50.0, stop_after=0.0, say=said.append)
    assert len(cut.plain.answers) == len(cut.points[0].answers) == 1
    assert said[-1] == "stopped after 1 of 2 prompts"
    assert document(tuner, cut, prompts)["prompts"] == [PROMPTS[0].id]
    with pytest.raises(ValueError, match="expected at least 1"):
        tune(tuner, prompts.prompts, [Point(1.0)], budget=0.5)
    with pytest.raises(ValueError, match="expected prompts"):
        tune(tuner, [], [Point(1.0)], budget=1.2)


def test_counts_and_shapes_are_those_of_score(host):
    context = "Revenue was 40 million in 2020 and 60 million in 2021."
    said = "It was 40 million, then 60 million, 50% more, 100 million in all, and 77 after that."
    ids = tuple(host.tokenizer(said, add_special_tokens=False)["input_ids"])
    answer = Tuner(host, {}, 12)._judged(Prompt("p", (context,), "How much?", None), ids, 1.0)
    scored = score_prompt({"plain": make_line("p", "plain", said, context=context, query="How much?")})[0]
    assert host.text(ids) == said
    assert scored.refused > scored.numbers["unsupported"] > 0  # "50%" and "100 million" are derivable
    assert answer.unsupported == scored.numbers["unsupported"]
    seen = host.view(host.prompt_text(Prompt("p", (context,), "How much?", None)), ids)["log_probs"]
    assert answer.shape == shape(said, len(ids), seen) and answer.shape.perplexity > 1


@pytest.mark.parametrize(("log_prob", "fails"), [(-1.0, False), (-2.0, True)])
def test_a_point_fails_by_the_perplexity_of_its_answers(host, monkeypatch, log_prob, fails):
    views = iter([-1.0, log_prob])  # the plain answer, and the point's
    monkeypatch.setattr(host, "view", lambda prompt, ids: {"log_probs": [next(views)] * len(ids)})
    tuned = tune(Tuner(host, {}, 12), PROMPTS[:1], [Point(1.0)], budget=50.0)
    assert any("perplexity" in reason for reason in tuned.points[0].failed) is fails


def test_command(tmp_path, capsys, host):
    host.tokenizer.save_pretrained(tmp_path / "host")
    host.model.save_pretrained(tmp_path / "host")
    rows = [{"id": p.id, "query": p.query, "context": CONTEXT} for p in PROMPTS[:2]]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folder = tmp_path / "out"
    command = ["tune", str(tmp_path / "host"), "--prompts", str(tmp_path / "p.jsonl"), "--out", str(folder)]
    command += ["--max-new-tokens", "10", "--skip-threshold", "0.5", "1", "--budget", "9"]
    status = main([*command, "--option", "on_unsupported=substitute"])
    captured = capsys.readouterr()
    assert "| plain |" in captured.out and "2/2 prompts" in captured.err
    grid = json.loads((folder / "grid.json").read_text())
    assert len(grid["points"]) == 2 and grid["answers"] == 4
    assert grid["host"]["id"] == "host"  # not the folder it lies in
    assert (status == 0) == (folder / "profile.json").exists() == (grid["chosen"] is not None)
    if status == 0:
        assert Profile.load(folder / "profile.json").options["on_unsupported"] == "substitute"
    assert main([*command, "--option", "do_sample=true"]) == 2
    assert "expected options of prevention, got do_sample" in capsys.readouterr().err


def test_command_with_a_gate(tmp_path, capsys, host, scripted):
    host.tokenizer.save_pretrained(tmp_path / "host")
    host.model.save_pretrained(tmp_path / "host")
    probe = make_probe(host.model, threshold=0.25)
    probe.save(tmp_path / "probe")
    row = {"id": "1", "query": PROMPTS[0].query, "context": CONTEXT}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    command = ["tune", str(tmp_path / "host"), "--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path)]
    command += ["--max-new-tokens", "8", "--skip-threshold", "1", "--budget", "999"]
    command += ["--detector", "number+lettucedetect", "--option", f"probe={tmp_path / 'probe'}"]
    status = main([*command, "--gate-threshold", "0", "0.5", "1"])
    captured = capsys.readouterr()
    grid = json.loads((tmp_path / "grid.json").read_text())
    assert [each["gate_threshold"] for each in grid["points"]] == [0.0, 0.5, 1.0], captured.err
    assert "| skip 1, gate 0.5 |" in captured.out and grid["options"]["gate"] == "probe"
    if status == 0:
        profile = Profile.load(tmp_path / "profile.json")
        assert profile.options["gate"] == "probe" and profile.options["gate_threshold"] in (0, 0.5, 1)
        assert profile.detector["versions"]["probe"] == probe.version
    main([*command[:-1], command[-1], "gate=probe"])  # the card's threshold, where none is given
    grid = json.loads((tmp_path / "grid.json").read_text())
    assert [each["gate_threshold"] for each in grid["points"]] == [0.25]


@pytest.mark.parametrize(
    ("answer", "fails"), [("a b c d " * 40, True), (" ".join(map(chr, range(97, 123))), False)]
)
def test_a_host_whose_own_answers_fall_apart_gets_no_recommendation(host, monkeypatch, answer, fails):
    monkeypatch.setattr(host, "text", lambda ids: answer)
    monkeypatch.setattr(host, "view", lambda prompt, ids: {"log_probs": [-1.0] * len(ids)})
    tuned = tune(Tuner(host, {}, 12), PROMPTS[:1], [Point(1.0)], budget=50.0)
    assert bool(tuned.plain.failed) is (tuned.chosen is None) is fails
    assert ("The host's own answers do" in table(tuned, 50.0)) is fails
    assert table(tuned, 50.0).count("answers are degenerate") == (3 if fails else 0)
