"""The causal detector inside transformers' generate(): every decoding mode, and failures in mid-generation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from causal import full_scores, make_checkpoint, maker, reference_model, tiny_host

from lettuceprevent.detectors import ScoreRequest
from lettuceprevent.generation import generate
from lettuceprevent.report import PreventionReport
from lettuceprevent.tree import CausalDetector

pytestmark = pytest.mark.filterwarnings("ignore:the prompt of row")  # a random host need not see the context

CONTEXT = "The company said on Tuesday that revenue rose by 12.5 percent to 2,400 million dollars in 2021."
OTHER = "Ten officers came; nothing had been heard of the ship."
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3},
    "skips": {"skip_threshold": 0.05},
    "direct": {"alignment": "direct"},
    "with numbers": {"detector_type": "number+lettuceprevent"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def host() -> tuple[Any, Any]:
    tokenizer = maker().small_tokenizer()
    tokenizer.padding_side = "left"
    return tiny_host(tokenizer), tokenizer


def run(
    host: tuple[Any, Any], folder: Path, prompts: Sequence[str], contexts: Any, **options: Any
) -> tuple[Any, Any]:
    """(new ids, report) of one generation of up to 14 tokens."""
    model, tokenizer = host
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    report = PreventionReport()
    chosen = {"detector_type": "lettuceprevent", "skip_threshold": 1.0, "max_new_tokens": 14, **options}
    torch.manual_seed(0)
    ids = generate(
        model,
        **inputs,
        tokenizer=tokenizer,
        input_text=contexts,
        detector_model=str(folder),
        report=report,
        **chosen,
    )
    return ids[:, inputs["input_ids"].shape[1] :], report


@pytest.mark.parametrize("mode", MODES)
def test_scores_in_the_loop_equal_full_passes(
    host: tuple[Any, Any], folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_model(folder)
    score = CausalDetector.score
    compared = []

    def checked(self: CausalDetector, requests: Sequence[ScoreRequest]) -> Any:
        scores = score(self, requests)
        for request, values in zip(requests, scores, strict=True):
            for candidate, value in list(zip(request.candidates, values, strict=True))[:2]:
                answer = self.alignment.ids((*request.history, candidate))
                if answer != self.alignment.ids(request.history):
                    prefix = self.prefixes(request.grounding)[0]
                    compared.append(abs(full_scores(reference, prefix + answer) - float(value)))
        return scores

    monkeypatch.setattr(CausalDetector, "score", checked)
    run(host, folder, ["In short:"], CONTEXT, **MODES[mode])
    assert len(compared) > 5
    assert max(compared) < 1e-5


def test_rows_of_a_batch_are_what_they_are_alone(host: tuple[Any, Any], folder: Path) -> None:
    prompts, contexts = ["In short: what", "Then"], [CONTEXT, OTHER]
    together, _ = run(host, folder, prompts, contexts)
    for row, (prompt, context) in enumerate(zip(prompts, contexts, strict=True)):
        alone, _ = run(host, folder, [prompt], context)
        size = alone.shape[1]
        assert together[row, :size].tolist() == alone[0].tolist()


def test_dropped_caches_change_nothing(
    host: tuple[Any, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = run(host, folder, ["In short:"], CONTEXT, num_beams=2)
    score = CausalDetector.score

    def forgetful(self: CausalDetector, requests: Sequence[ScoreRequest]) -> Any:
        self.drop_caches()
        return score(self, requests)

    monkeypatch.setattr(CausalDetector, "score", forgetful)
    dropped, _ = run(host, folder, ["In short:"], CONTEXT, num_beams=2)
    assert kept.tolist() == dropped.tolist()


@pytest.mark.parametrize("on_error", ["raise", "allow", "block"])
def test_failure_in_mid_generation(
    host: tuple[Any, Any], folder: Path, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = CausalDetector.score
    calls = 0

    def failing(self: CausalDetector, requests: Sequence[ScoreRequest]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("out of memory")
        return score(self, requests)

    monkeypatch.setattr(CausalDetector, "score", failing)
    if on_error == "raise":
        with pytest.raises(RuntimeError, match="out of memory"):
            run(host, folder, ["In short:"], CONTEXT, on_error=on_error)
        return
    ids, report = run(host, folder, ["In short:"], CONTEXT, on_error=on_error)
    counters = report.to_dict()["counters"]
    assert counters["errors"] == 1
    assert counters["unchecked"] >= 1
    if on_error == "allow":
        assert calls > 4  # it went on
    else:
        assert ids.shape[1] <= 14


def test_notes_are_in_the_report(host: tuple[Any, Any], folder: Path) -> None:
    _, report = run(host, folder, ["In short:"], OTHER * 40, on_long_context="truncate")
    notes = report.to_dict()["notes"]["lettuceprevent"]
    assert notes["contexts_truncated"] == 1
    assert notes["forward_passes"] > 5
