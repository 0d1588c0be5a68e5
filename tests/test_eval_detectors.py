"""The figures of scripts/eval_detectors.py, by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture(scope="module")
def script() -> Any:
    if not (SCRIPTS / "eval_detectors.py").is_file():
        pytest.skip("no scripts in this checkout")
    sys.path.insert(0, str(SCRIPTS))
    try:
        import eval_detectors
    finally:
        sys.path.remove(str(SCRIPTS))
    return eval_detectors


def test_what_is_among_the_steps_checked(script: Any) -> None:
    signal = np.array([0.1, 0.9, 0.5, 0.7], np.float32)
    wanted = np.array([True, True, False, False])
    assert [script.reached(signal, wanted, share) for share in (0.1, 0.25, 0.5, 0.75, 1.0)] == [
        0.0,  # less than a token
        0.5,
        0.5,
        0.5,
        1.0,
    ]
    assert script.reached(signal, ~wanted, 0.5) == 0.5
    # the first token twice and the last not at all: of three tokens two are wanted, at most one is checked
    assert script.reached(signal, wanted, 0.5, np.array([2, 1, 0, 0])) == pytest.approx(1 / 3)
    assert script.reached(signal, np.zeros(4, bool), 0.5) == 1.0  # nothing is missed


def test_figures_of_one_detector(script: Any) -> None:
    tokens = script.Tokens(
        np.array([True, False, True, False]), np.array([0, 0, 1, 1]), np.array([True, False, True, False])
    )
    found = script.measured(np.array([0.9, 0.8, 0.7, 0.1], np.float32), tokens, 0.75, True)
    assert found["auroc"]["value"] == pytest.approx(3 / 4)
    assert found["average_precision"]["value"] == pytest.approx(1 / 2 + 1 / 3)
    assert (found["precision"], found["recall"], found["f1"]["value"]) == (0.5, 0.5, 0.5)
    assert found["best_f1"] == pytest.approx(4 / 5) and found["first_token_recall"] == 0.5
    # resamples have one answer twice or both: the first alone is perfect, as is the second
    assert found["auroc"]["low"] == pytest.approx(3 / 4) and found["auroc"]["high"] == 1.0
    assert set(tokens.of(np.array([False, False, True, True])).owner) == {0}


def test_contexts_that_were_trained_on_are_refused(script: Any) -> None:
    from lettuceprevent.training.data import Example
    from lettuceprevent.training.splits import context_key

    examples = [Example("a", "One context.", "", "answer")]
    card = {"data": {"contexts": f"00000000 {context_key('one  context.')[:8]}"}}
    with pytest.raises(SystemExit, match="expected no test context"):
        script.unseen_by(examples, card, [], "probe")
    assert script.unseen_by(examples, {"data": {"contexts": "00000000"}}, [], "probe") == "card"
    assert script.unseen_by(examples, {}, [], "probe").startswith("not checked")


def test_the_layers_of_the_cache(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.layers_to_read(tmp_path, "k", {3, 1}) == [1, 3]
    assert script.layers_to_read(tmp_path, "k", {3}) == script.layers_to_read(tmp_path, "k", set()) == [1, 3]
    write = Path.write_text

    def killed(path: Path, text: str, **options: Any) -> int:
        write(path, text[: len(text) // 2], **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            script.layers_to_read(tmp_path, "k", {4})
    assert script.layers_to_read(tmp_path, "k", {1}) == [1, 3]  # as it was before
    assert [each.name for each in tmp_path.iterdir()] == ["layers.json"]
    assert script.layers_to_read(tmp_path, "other", set()) == [1]


def test_scores_are_kept_per_host_and_alignment(script: Any, tmp_path: Path) -> None:
    from causal import make_checkpoint
    from fakes import make_tokenizer

    from lettuceprevent.training.data import Example
    from lettuceprevent.training.labels import label_tokens

    folder = make_checkpoint(tmp_path / "detector")
    examples = [Example("a", "There were 24 cats.", "", "There were 31 dogs.", ((11, 13),))]
    names = {}
    for size in (400, 300):
        tokenizer = make_tokenizer(size)
        labelled = [label_tokens(each, tokenizer) for each in examples]
        for mode in ("host_chunks", "direct"):
            detector = script.CausalDetector.for_host(tokenizer, detector_model=str(folder), alignment=mode)
            host = SimpleNamespace(tokenizer=tokenizer)
            name = script.causal_name(detector, tokenizer, labelled, None, "data")
            assert name == script.causal_name(detector, make_tokenizer(size), labelled, None, "data")
            names[size, mode] = name
            path = tmp_path / name
            fresh = script.causal_scores(detector, host, examples, labelled, None)[0]
            kept = script.causal_scores(detector, host, examples, labelled, path)[0]
            assert len(kept) == len(labelled[0].ids) and np.allclose(kept, fresh, atol=1e-5)
            assert np.array_equal(script.causal_scores(detector, host, examples, labelled, path)[0], kept)
    assert len(set(names.values())) == 4
