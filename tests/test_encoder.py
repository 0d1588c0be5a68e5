"""The encoder detector against one forward pass per candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from causal import maker, tiny_host, write_encoder

from lettuceprevent.checkpoint import CheckpointError
from lettuceprevent.cli import main
from lettuceprevent.detectors import ScoreRequest, build_detectors
from lettuceprevent.encoder import EncoderDetector, prompt_of
from lettuceprevent.generation import generate
from lettuceprevent.grounding import Grounding
from lettuceprevent.report import PreventionReport

PLAIN = Grounding(("Revenue rose by 12.5 percent in 2021.",))
ASKED = Grounding(("Ten officers came.", "It was Tuesday."), "How many officers came?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def tokenizer() -> Any:
    return maker().small_tokenizer()


def test_batched_scores_equal_single_passes(folder: Path, tokenizer: Any) -> None:
    detector = EncoderDetector.for_host(tokenizer, detector_model=folder)
    history = tuple(tokenizer.encode("In 2021 ten", add_special_tokens=False))
    smile = tokenizer.encode("😀", add_special_tokens=False)[0]
    requests = [
        ScoreRequest(PLAIN, (), (40, 41)),
        ScoreRequest(ASKED, history, (50, tokenizer.sep_token_id, 300, smile)),
    ]
    scores = detector.score(requests)
    for request, got in zip(requests, scores, strict=True):
        for candidate, value in zip(request.candidates, got, strict=True):
            data = detector.vocabulary[candidate]
            if not data:
                assert value == 0
                continue
            answer = (detector.vocabulary.join(request.history) + data).decode("utf-8", "replace")
            prompt = tokenizer.encode(prompt_of(request.grounding), add_special_tokens=False)
            written = tokenizer.encode(answer, add_special_tokens=False)
            ids = [tokenizer.cls_token_id, *prompt, tokenizer.sep_token_id, *written, tokenizer.sep_token_id]
            with torch.inference_mode():
                logits = detector.model(input_ids=torch.tensor([ids])).logits[0, -2]
            assert float(torch.softmax(logits, -1)[1]) == pytest.approx(float(value), abs=1e-5)
    assert np.ptp(np.concatenate(scores)) > 0.01


def test_prompt_has_every_passage_and_the_query() -> None:
    prompt = prompt_of(ASKED)
    assert "How many officers came?" in prompt
    assert "passage 1: Ten officers came." in prompt
    assert "passage 2: It was Tuesday." in prompt
    assert PLAIN.text in prompt_of(PLAIN)


def test_long_contexts(folder: Path, tokenizer: Any) -> None:
    long = Grounding(("word " * 800,))
    detector = EncoderDetector.for_host(tokenizer, detector_model=folder)
    with pytest.raises(ValueError, match="expected a context of at most"):
        detector.score([ScoreRequest(long, (), (40,))])
    cut = EncoderDetector.for_host(tokenizer, detector_model=folder, on_long_context="truncate")
    assert cut.score([ScoreRequest(long, (), (40,))])[0].shape == (1,)
    assert cut.notes()["contexts_truncated"] == 1
    with pytest.raises(ValueError, match="within"):
        detector.score([ScoreRequest(PLAIN, (40,) * 600, (40,))])


def test_one_model_per_process(folder: Path, tokenizer: Any) -> None:
    first, second = (EncoderDetector.for_host(tokenizer, detector_model=folder) for _ in range(2))
    assert first.model is second.model


def test_wrong_number_of_labels(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(CheckpointError, match="2 labels, got 3"):
        EncoderDetector.for_host(tokenizer, detector_model=write_encoder(tmp_path, labels=3))


# -- inside generate() ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> Any:
    return tiny_host(maker().small_tokenizer())


@pytest.mark.parametrize("detector_type", ["lettucedetect", "number+lettucedetect"])
@pytest.mark.parametrize("decoding", [{}, {"num_beams": 2}], ids=["greedy", "beams"])
def test_generation_never_takes_a_flagged_candidate(
    host: Any, folder: Path, tokenizer: Any, detector_type: str, decoding: dict[str, Any]
) -> None:
    inputs = tokenizer(f"{PLAIN.text} In short:", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    detector = EncoderDetector.for_host(tokenizer, detector_model=folder)
    scores = detector.score([ScoreRequest(PLAIN, (), tuple(range(40, 140)))])[0]
    threshold = float(np.median(scores))  # some are flagged, some are not
    report = PreventionReport()
    ids = generate(
        host,
        **inputs,
        tokenizer=tokenizer,
        input_text=PLAIN.text,
        detector_type=detector_type,
        detector_model=folder,
        confidence_threshold=threshold,
        candidates=4,
        max_new_tokens=10,
        report=report,
        **decoding,
    )
    data = report.to_dict()
    counters = data["counters"]
    assert counters["checked"] >= 10
    assert counters["candidates_penalised"] > 0
    assert data["notes"]["lettucedetect"]["forward_passes"] >= 10
    history = tuple(ids[0, inputs["input_ids"].shape[1] :].tolist())
    flagged = 0
    for at, token in enumerate(history):
        if token != tokenizer.sep_token_id:
            flagged += detector.score([ScoreRequest(PLAIN, history[:at], (token,))])[0][0] > threshold
    assert flagged <= counters["forced"]


def test_number_detector_beside_it(folder: Path, tokenizer: Any) -> None:
    vocabulary = EncoderDetector.for_host(tokenizer, detector_model=folder).vocabulary
    built = build_detectors(
        "lettucedetect+number", tokenizer, vocabulary, [PLAIN], detector_model=folder, units=False
    )
    assert [type(each).__name__ for each in built] == ["list", "EncoderDetector"]
    with pytest.raises(TypeError, match="no option alignment"):
        build_detectors("lettucedetect", tokenizer, vocabulary, [PLAIN], alignment="direct")
    with pytest.raises(TypeError, match="expected one detector that loads a model"):
        build_detectors("lettuceprevent+lettucedetect", tokenizer, vocabulary, [PLAIN], detector_model=folder)


@pytest.mark.filterwarnings("ignore:the prompt of row")
def test_context_that_is_too_long_raises_before_generation(host: Any, folder: Path, tokenizer: Any) -> None:
    text = "word " * 800
    inputs = tokenizer("word word", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    asked = {"tokenizer": tokenizer, "input_text": text, "detector_model": folder}
    asked["detector_type"] = "lettucedetect"
    with pytest.raises(ValueError, match="on_long_context"):
        generate(host, **inputs, **asked, max_new_tokens=2)
    report: dict[str, Any] = {}
    generate(host, **inputs, **asked, max_new_tokens=2, on_long_context="truncate", report=report)
    assert report["notes"]["lettucedetect"]["contexts_truncated"] == 1


def test_on_the_command_line(
    host: Any, folder: Path, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    context = tmp_path / "context.txt"
    context.write_text(PLAIN.text, encoding="utf-8")
    asked = [
        "--model",
        str(tmp_path),
        "--context",
        str(context),
        "--question",
        "When?",
        "--max-new-tokens",
        "3",
    ]
    chosen = ["--detector", "lettucedetect", "--detector-model", str(folder), "--device", "cpu", "--json"]
    assert main(["generate", *asked, *chosen]) == 0
    assert '"lettucedetect"' in capsys.readouterr().out
