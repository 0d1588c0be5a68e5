"""A probe at work: what it reads inside generate(), what the report says of it, and the gate."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from fakes import ScriptedDetector, digit_runs, make_llama, make_probe, make_tokenizer
from transformers import LogitsProcessorList

import lettuceprevent.detectors
import lettuceprevent.probe
from lettuceprevent.evaluation.html import generation_page
from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.probe import HEADS, Probe, Watched, decoder_layers, watch
from lettuceprevent.processor import PreventionLogitsProcessor
from lettuceprevent.report import PreventionReport, TokenRisks

CONTEXT = "Revenue was 2400 million in 2021 and 3100 million in 2022."
PROMPTS = ("In 17 of 24 ", "A longer prompt: there were 31 dogs and 100 birds, that is ")
pytestmark = pytest.mark.filterwarnings("ignore:the prompt of row")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return make_llama(len(tokenizer) + 16)


@pytest.fixture(scope="module")
def probe(model: Any) -> Probe:
    return make_probe(model)


def run(model: Any, tokenizer: Any, prompts: tuple[str, ...] = PROMPTS[:1], **options: Any) -> Any:
    """(prompt ids, sequences, report)"""
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    report = options.pop("report", None) or PreventionReport()
    out = generate(
        model,
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        tokenizer=tokenizer,
        report=report,
        **{"input_text": CONTEXT, "max_new_tokens": 14, "do_sample": False, "pad_token_id": 0, **options},
    )
    return inputs, out, report


def reference(model: Any, probe: Probe, ids: list[int]) -> dict[str, np.ndarray]:
    """Each head's risk at every position, by one pass over all of them."""
    found = {}
    for head in HEADS:
        states = []
        layer = decoder_layers(model)[probe.layer(head) - 1]
        handle = layer.register_forward_hook(
            lambda *args, kept=states: kept.append(args[2][0] if isinstance(args[2], tuple) else args[2])
        )
        with torch.no_grad():
            model(torch.tensor([ids]), use_cache=False)
        handle.remove()
        found[head] = probe.risk(head, states[0][0]).numpy()
    return found


def assert_true_to(model: Any, probe: Probe, inputs: Any, out: Any, report: PreventionReport) -> int:
    """Every risk of the report is that of a pass over prompt and answer alone; how many there are."""
    checked = 0
    rows = len(inputs["input_ids"])
    for summary in report.sequences:
        row = summary.row * rows // len(out)
        prompt = inputs["input_ids"][row][inputs["attention_mask"][row] > 0].tolist()
        new = out[summary.row, inputs["input_ids"].shape[1] :].tolist()[: summary.tokens]
        want = reference(model, probe, prompt + new)
        risks = summary.risks
        assert risks is not None and len(risks.before) == len(risks.after) == summary.tokens
        start = len(prompt)
        assert np.allclose(risks.before, want["before"][start - 1 : -1], atol=1e-4)
        assert None not in risks.after[:-1]
        assert np.allclose(risks.after[:-1], want["after"][start:-1], atol=1e-4)
        checked += summary.tokens
    assert not any(layer._forward_hooks for layer in decoder_layers(model))
    return checked


MODES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "top_k": 40},
    {"num_beams": 4},
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 3, "do_sample": True},
    {"num_return_sequences": 3, "do_sample": True},
    {"eos_token_id": list(range(2, 160))},
    {"cache_implementation": "static"},
    {"use_cache": False},
]


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "batch"])
def test_risks_are_those_of_the_tokens(
    model: Any, tokenizer: Any, probe: Probe, options: dict[str, Any], prompts: tuple[str, ...]
) -> None:
    torch.manual_seed(3)
    given = {"probe": probe, "detector_type": "probe", **options}
    inputs, out, report = run(model, tokenizer, prompts, **given)
    assert assert_true_to(model, probe, inputs, out, report) > 0
    assert report.counters["steps"] > 0 == report.counters["checked"] == report.counters["penalised"]
    torch.manual_seed(3)  # and nothing is changed by it
    plain = model.generate(
        **{name: inputs[name] for name in ("input_ids", "attention_mask")},
        **{"max_new_tokens": 14, "do_sample": False, "pad_token_id": 0, **options},
    )
    assert torch.equal(out, plain)


@pytest.mark.parametrize("layers", [(2, 1), (1, 1), (2, 2)])
def test_heads_on_any_layers(model: Any, tokenizer: Any, layers: tuple[int, int]) -> None:
    probe = make_probe(model, layers=layers)
    inputs, out, report = run(model, tokenizer, probe=probe, detector_type="probe")
    assert_true_to(model, probe, inputs, out, report)


class MoreDigits:
    """Makes digits likely."""

    def __init__(self, tokenizer: Any, width: int) -> None:
        self.bias = torch.zeros(width)
        for token in range(len(tokenizer)):
            if digit_runs(tokenizer.decode([token])):
                self.bias[token] = 8.0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores + self.bias


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "batch"])
def test_with_numbers_that_are_taken_back(
    model: Any, tokenizer: Any, probe: Probe, prompts: tuple[str, ...]
) -> None:
    digits = LogitsProcessorList([MoreDigits(tokenizer, model.config.vocab_size)])
    given = {"logits_processor": digits, "max_new_tokens": 24, "number_words": False}
    inputs, out, report = run(model, tokenizer, prompts, detector_type="number+probe", probe=probe, **given)
    assert report.counters["retractions"] > 0  # the host was paused and its cache cut
    assert_true_to(model, probe, inputs, out, report)
    _, alone, _ = run(model, tokenizer, prompts, detector_type="number", **given)
    assert torch.equal(out, alone)


def test_no_forward_pass_of_its_own(model: Any, tokenizer: Any, probe: Probe) -> None:
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        run(model, tokenizer, detector_type=None)
        plain = len(calls)
        run(model, tokenizer, detector_type="probe", probe=probe)
    finally:
        handle.remove()
    assert len(calls) == 2 * plain > 0


def test_report_and_summary(model: Any, tokenizer: Any, probe: Probe) -> None:
    _, out, report = run(model, tokenizer, detector_type="probe", probe=probe, input_text=None)
    told = report.to_dict()
    (risks,) = [each["risks"] for each in told["sequences"]]
    assert set(risks) == {"before", "after", "flagged"}
    late = [*risks["after"][:-1], risks["before"][-1]]  # the host never read the last token
    above = [at for at, risk in enumerate(late) if risk > 0.5]
    assert above == [at for each in risks["flagged"] for at in range(each["start"], each["end"])]
    assert 0 < len(above) < len(late)
    for each in risks["flagged"]:
        assert each["risk"] == max(late[each["start"] : each["end"]])
        start = out.shape[1] - len(late)
        assert each["text"] == tokenizer.decode(out[0, start + each["start"] : start + each["end"]])
    assert told["options"]["probe"] == "tiny" and told["options"]["probe_version"] == probe.version
    text = report.summary()
    assert f"the probe flags {len(above)} of {len(late)} tokens" in text
    assert text.count("flagged by the probe, risk") == len(risks["flagged"])
    assert report.to_json()


def test_flagged_spans_by_hand() -> None:
    pieces = [b"a", b" b", b"c", b" \xc3", b"\xa9"]
    found = TokenRisks.of([0.1, 0.9, 0.1, 0.1, 0.7], [0.1, 0.6, 0.7, 0.2, None], [0.65, 0.5], pieces)
    assert [(each.start, each.end, each.text, each.risk) for each in found.flagged] == [
        (1, 3, " bc", 0.7),
        (4, 5, "\ufffd", 0.7),
    ]
    assert TokenRisks.of([None], [None], [0.0, 0.0], [b"x"]).flagged == []


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedDetector:
    """What `detector_type="lettucedetect"` builds: flags candidates by path and token."""

    def judge(history: tuple[int, ...], token: int) -> float:
        return (token * 37 + 11 * sum(history) + 5 * len(history)) % 101 / 100

    detector = ScriptedDetector(judge)
    monkeypatch.setitem(lettuceprevent.detectors._BUILDERS, "lettucedetect", lambda *_: detector)
    return detector


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}], ids=str
)
@pytest.mark.parametrize("detector", ["lettucedetect", "number+lettucedetect"])
def test_the_gate(
    model: Any,
    tokenizer: Any,
    probe: Probe,
    scripted: ScriptedDetector,
    options: dict[str, Any],
    detector: str,
) -> None:
    gated = {"detector_type": detector, "gate": "probe", "probe": probe, **options}
    answers = {}
    for threshold in (0.0, 0.5, 1.0):
        scripted.requests.clear()
        torch.manual_seed(0)
        inputs, out, report = run(model, tokenizer, PROMPTS, gate_threshold=threshold, **gated)
        answers[threshold] = out.tolist()
        assert_true_to(model, probe, inputs, out, report)
        count = report.counters
        if detector == "lettucedetect":
            assert count["steps"] == count["checked"] + count["gated"]
        else:
            assert count["steps"] == count["checked"]
        asked = {(each.grounding, each.history) for each in scripted.requests}
        assert bool(asked) == (threshold < 1)
        assert (count["gated"] > 0) == (threshold > 0) and (count["gated"] == count["steps"]) == (
            threshold == 1
        )
        for summary in report.sequences if not options else ():
            new = out[summary.row, inputs["input_ids"].shape[1] :].tolist()
            grounding = Grounding((CONTEXT,))
            for at, risk in enumerate(summary.risks.before):
                assert ((grounding, tuple(new[:at])) in asked) == (risk > threshold)
    scripted.requests.clear()
    torch.manual_seed(0)
    _, out, _ = run(model, tokenizer, PROMPTS, detector_type=detector, **options)
    assert out.tolist() == answers[0.0] != answers[1.0]
    torch.manual_seed(0)
    literal = "number" if "number" in detector else None
    _, out, _ = run(model, tokenizer, PROMPTS, detector_type=literal, **options)
    assert out.tolist() == answers[1.0]


def test_the_gate_defaults_to_the_card(model: Any, tokenizer: Any, scripted: ScriptedDetector) -> None:
    probe = make_probe(model, threshold=0.375)
    _, _, report = run(model, tokenizer, detector_type="lettucedetect", gate="probe", probe=probe)
    assert report.options["gate"] == "probe" and report.options["gate_threshold"] == 0.375
    assert f"{report.counters['gated']} steps at which the probe kept" in report.summary()


def test_the_gate_and_skip_threshold_together(
    model: Any, tokenizer: Any, probe: Probe, scripted: ScriptedDetector
) -> None:
    _, _, report = run(
        model,
        tokenizer,
        detector_type="lettucedetect",
        gate="probe",
        gate_threshold=0.5,
        skip_threshold=0.5,
        probe=probe,
        max_new_tokens=60,
    )
    count = report.counters
    assert min(count["skipped"], count["gated"], count["checked"]) > 0
    assert count["steps"] == count["skipped"] + count["gated"] + count["checked"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "probe", "detector_type": "number"}, "gate: expected a model detector"),
        ({"gate": "entropy", "detector_type": "lettucedetect"}, "gate: expected one of probe"),
        ({"gate_threshold": 0.5, "detector_type": "lettucedetect"}, "gate_threshold: expected gate='probe'"),
        ({"gate": "probe", "gate_threshold": 2, "detector_type": "lettucedetect"}, "from 0 to 1, got 2"),
        ({"detector_type": "probe", "prompt_lookup_num_tokens": 3}, "assisted or prompt-lookup"),
        ({"detector_type": "probe", "guidance_scale": 1.5}, "guidance_scale"),
        ({"detector_type": "number"}, "probe: expected detector_type or gate 'probe'"),
    ],
    ids=str,
)
def test_refusals(
    model: Any,
    tokenizer: Any,
    probe: Probe,
    scripted: ScriptedDetector,
    options: dict[str, Any],
    message: str,
) -> None:
    given = {} if "gate_threshold" in options and "gate" not in options else {"probe": probe}
    with pytest.raises(ValueError, match=message):
        run(model, tokenizer, **given, **options)


def test_another_host_is_refused(model: Any, tokenizer: Any, probe: Probe) -> None:
    other = make_llama(len(tokenizer))
    with pytest.raises(ValueError, match=r"probe of tiny: expected hash .*, got"):
        run(other, tokenizer, detector_type="probe", probe=probe)


def test_the_probe_of_the_package_is_the_one_that_fits(
    model: Any, tokenizer: Any, probe: Probe, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lettuceprevent.probe, "SHIPPED", tmp_path)
    with pytest.raises(ValueError, match=r"expected one made for the host .*none with this package"):
        run(model, tokenizer, detector_type="probe")
    make_probe(make_llama(len(tokenizer))).save(tmp_path / "another")
    with pytest.raises(ValueError, match=r"probe of tiny: expected hash .*lettuceprevent train probe"):
        run(model, tokenizer, detector_type="probe")
    probe.save(tmp_path / "this")
    _, _, report = run(model, tokenizer, detector_type="probe")
    assert report.options["probe_version"] == probe.version
    for source in (tmp_path / "this", str(tmp_path / "this" / "probe.safetensors")):
        _, _, again = run(model, tokenizer, detector_type="probe", probe=source)
        assert again.sequences == report.sequences
    with pytest.raises(FileNotFoundError, match="probe: expected a folder written by"):
        run(model, tokenizer, detector_type="probe", probe=tmp_path / "nowhere")


def test_a_plain_processor_with_a_watched_host(model: Any, tokenizer: Any, probe: Probe) -> None:
    inputs = tokenizer(CONTEXT, return_tensors="pt")
    with pytest.raises(ValueError, match=r"watched: expected what probe\.watch"):
        PreventionLogitsProcessor.for_host(tokenizer, CONTEXT, detector="probe")
    with watch(model, probe) as seen:
        processor = PreventionLogitsProcessor.for_host(
            tokenizer, CONTEXT, detector="number+probe", watched=seen
        )
        given = {"max_new_tokens": 9, "pad_token_id": 0, "do_sample": False}
        out = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_processor=[processor],
            **given,
        )
    processor.finish(out)
    assert_true_to(model, probe, inputs, out, processor.report)


class NoPass(Watched):
    """A host whose passes are not seen, as where it was compiled before."""

    def __enter__(self) -> Watched:
        return self


def test_a_host_that_cannot_be_read(
    model: Any, tokenizer: Any, probe: Probe, scripted: ScriptedDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lettuceprevent.generation.Watched", NoPass)
    given = {"detector_type": "lettucedetect", "gate": "probe", "probe": probe}
    with pytest.raises(RuntimeError, match="expected a forward pass of the watched host"):
        run(model, tokenizer, **given)
    _, _, report = run(model, tokenizer, on_error="allow", **given)
    count = report.counters
    assert count["errors"] == count["checked"] == count["steps"] > 0 == count["gated"]  # no risk: it asks
    assert set(report.sequences[0].risks.before) == {None}


def test_passes_of_other_threads_are_not_read(model: Any, tokenizer: Any, probe: Probe) -> None:
    ids = tokenizer(CONTEXT, return_tensors="pt")["input_ids"]
    with watch(model, probe) as seen:
        with pytest.raises(RuntimeError, match="got none yet"):
            seen.risks()
        model(ids)
        want = seen.risks().clone()
        other = threading.Thread(target=lambda: model(ids[:, :3].repeat(2, 1)))
        other.start()
        other.join()
        assert seen.calls == 1 and torch.equal(seen.risks(), want)
        with pytest.raises(RuntimeError, match="expected a forward pass of 2 rows, got 1"):
            seen.take(2, torch.device("cpu"))


def test_half_precision(tokenizer: Any) -> None:
    model = make_llama(len(tokenizer)).to(torch.bfloat16)
    probe = make_probe(model)
    _, _, report = run(model, tokenizer, detector_type="probe", probe=probe)
    risks = report.sequences[0].risks
    assert all(0 < each < 1 for each in risks.before)


def test_trace_has_the_risk(model: Any, tokenizer: Any, probe: Probe) -> None:
    report = PreventionReport(trace=2)
    run(model, tokenizer, detector_type="probe", probe=probe, report=report)
    steps = report.to_dict()["trace"]["answers"][0]["steps"]
    assert [each["risk"] for each in steps] == report.sequences[0].risks.before
    page = generation_page(report.to_dict(), [CONTEXT], "And?")
    assert all(f"risk {each['risk']:.2f}" in page for each in steps)
