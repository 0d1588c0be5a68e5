"""A probe on a tiny random host: trained, written, read inside generation, refused by another host."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import make_llama, make_tokenizer
from scipy.optimize import minimize

from lettuceprevent.cli import main
from lettuceprevent.probe import SHIPPED, Probe, decoder_layers, watch, weights_hash
from lettuceprevent.training.data import Example
from lettuceprevent.training.labels import label_tokens
from lettuceprevent.training.probe import (
    PENALTIES,
    best_f1,
    corrupted,
    drawn_share,
    fit_logistic,
    train_probe,
)
from lettuceprevent.training.splits import context_key
from lettuceprevent.training.states import extract_states, prompt_ids

ANSWER = "There were 24 cats and 31 dogs."
EXAMPLES = [
    Example(str(n), f"Context {n}: cats and dogs.", "How many?", ANSWER, ((11, 13), (23, 25)))
    for n in range(24)
]


@pytest.fixture(scope="module")
def host() -> tuple[Any, Any]:
    tokenizer = make_tokenizer()
    return make_llama(len(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def trained(host: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Probe, Path]:
    folder = tmp_path_factory.mktemp("probe")
    model, tokenizer = host
    return train_probe(model, tokenizer, "tiny", EXAMPLES, folder, folds=3, say=lambda _: None), folder


def test_a_learnable_pattern_is_learnt_and_the_file_holds_it(trained: tuple[Probe, Path]) -> None:
    probe, folder = trained
    # The number tokens are always the same, so the state after them tells.
    assert probe.card["heads"]["after"]["validation"]["f1"] > 0.95
    again = Probe.load(folder)
    states = torch.randn(3, 32)
    for head in ("before", "after"):
        assert torch.equal(again.weights[head], probe.weights[head])
        assert again.biases[head] == probe.biases[head]
        assert torch.allclose(again.risk(head, states), probe.risk(head, states), rtol=1e-3)
    assert again.card == probe.card
    modes = {(folder / name).stat().st_mode for name in ("probe.json", "probe.safetensors")}
    assert len(modes) == 1  # who may read the one may read the other


def test_the_hook_reads_what_training_read(host: tuple[Any, Any], trained: tuple[Probe, Path]) -> None:
    model, tokenizer = host
    probe, _ = trained
    ids = torch.tensor([prompt_ids(tokenizer, EXAMPLES[0], 100)])
    layer = decoder_layers(model)[probe.layer("before") - 1]
    risks: list[torch.Tensor] = []
    with watch(model, probe) as seen:
        out = model.generate(
            input_ids=ids,
            max_new_tokens=6,
            min_new_tokens=6,
            num_beams=2,
            logits_processor=[lambda _, scores: (risks.append(seen.risks()), scores)[1]],
        )
        assert seen.calls == len(risks) == 6
    assert all(each.shape in {(1,), (2,)} for each in risks) and not layer._forward_hooks
    with watch(model, probe) as seen:  # a full pass has the same last state as the steps
        model(ids)
        assert torch.allclose(seen.risks(), risks[0], atol=1e-5)
    assert out.shape[1] == ids.shape[1] + 6


def test_another_host_is_refused(host: tuple[Any, Any], trained: tuple[Probe, Path]) -> None:
    probe, _ = trained
    for change, message in (
        ({"num_hidden_layers": 3}, "expected layers 2, got 3"),
        ({"hidden_size": 64}, "expected width 32, got 64"),
        ({"vocab_size": 7}, "expected hash"),
    ):
        config = copy.deepcopy(host[0].config)
        probe.check_host(host[0].config)
        for name, value in change.items():
            setattr(config, name, value)
        with pytest.raises(ValueError, match=message):
            probe.check_host(config)


def test_another_fine_tune_is_refused_and_another_dtype_is_not(
    host: tuple[Any, Any], trained: tuple[Probe, Path]
) -> None:
    probe, _ = trained
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        probe.check_host(copy.deepcopy(host[0]).to(dtype))
    tuned = copy.deepcopy(host[0])
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter += 0.1 * parameter.std() * torch.randn_like(parameter)
    with pytest.raises(ValueError, match="expected weights"):
        watch(tuned, probe)
    assert weights_hash(tuned.to("meta")) == ""
    probe.check_host(tuned)  # not to be told


def test_the_cache_goes_on_where_it_stopped(host: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = host
    some = EXAMPLES[:22]
    labelled = [label_tokens(each, tokenizer) for each in some]

    def run(key: str, say: Any) -> Any:
        found = extract_states(model, tokenizer, some, labelled, [1, 2], tmp_path, key=key, say=say)
        return found.states

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("k", stop)  # killed after the first 20
    said: list[str] = []
    resumed = np.array(run("k", said.append))
    assert said == ["states: 22 of 22 answers"]
    assert run("k", said.append).shape == resumed.shape and len(said) == 1  # nothing is left to do
    assert np.array_equal(np.array(run("other", said.append)), resumed) and len(said) == 3


def test_a_kill_while_the_note_is_written_costs_the_last_part_only(
    host: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = host
    some = [replace(EXAMPLES[0], id=str(n), context=f"Context {n}") for n in range(42)]
    labelled = [label_tokens(each, tokenizer) for each in some]
    said: list[str] = []

    def run(key: str = "k") -> Any:
        return np.array(
            extract_states(model, tokenizer, some, labelled, [1], tmp_path, key=key, say=said.append).states
        )

    whole = run("other")
    write, count = Path.write_text, 0

    def killed(path: Path, text: str, **options: Any) -> int:
        nonlocal count
        count += 1
        if count == 2:
            write(path, text[: len(text) // 2], **options)
            raise KeyboardInterrupt
        return write(path, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            run()
    said.clear()
    assert np.array_equal(run(), whole) and said == ["states: 40 of 42 answers", "states: 42 of 42 answers"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["states.f16", "states.json"]


def test_a_kill_before_the_first_note_leaves_none_of_the_last_run(
    host: tuple[Any, Any], tmp_path: Path
) -> None:
    model, tokenizer = host
    some = EXAMPLES[:3]
    labelled = [label_tokens(each, tokenizer) for each in some]

    def run(key: str, tokens: Any) -> Any:
        return np.array(
            extract_states(model, tokenizer, some, tokens, [1], tmp_path, key=key, say=lambda _: None).states
        )

    whole = run("k", labelled)
    broken = [*labelled[:2], replace(labelled[2], ids=(10**6,) * len(labelled[2].ids))]
    with pytest.raises(IndexError):
        run("other", broken)  # its states are in the place of the first run's by now
    assert np.array_equal(run("k", labelled), whole)


@pytest.mark.parametrize("figures", [False, True])
def test_answers_that_share_a_prompt_are_read_as_each_alone(
    host: tuple[Any, Any], tmp_path: Path, figures: bool
) -> None:
    model, tokenizer = host
    one, other = EXAMPLES[:2]
    some = [one, other, replace(one, id="again", answer="No cats.", spans=())]  # first and last share
    labelled = [label_tokens(each, tokenizer) for each in some]
    hooks = [len(layer._forward_hooks) for layer in decoder_layers(model)]
    found = extract_states(
        model, tokenizer, some, labelled, [2, 1], tmp_path, key="k", figures=figures, say=lambda _: None
    )
    assert [len(layer._forward_hooks) for layer in decoder_layers(model)] == hooks
    at = 0
    for example, tokens in zip(some, labelled, strict=True):
        ids, size = [*prompt_ids(tokenizer, example), *tokens.ids], len(tokens.ids)
        with torch.no_grad():
            out = model(torch.tensor([ids]), output_hidden_states=True)
        rows = slice(at, at + size + 1)
        assert np.allclose(found.states[rows, 1], out.hidden_states[1][0, -size - 1 :], atol=2e-3)
        if figures:
            assert found.figures is not None
            p = torch.softmax(out.logits[0, -size - 1 :], -1)
            written = p[torch.arange(size), list(tokens.ids)]
            assert np.allclose(np.exp(found.figures[rows, 0][:-1]), written, atol=1e-5)
            assert np.allclose(found.figures[rows, 1], -(p * p.log()).sum(-1), atol=1e-4)
            assert np.allclose(found.figures[rows, 2], p.max(-1).values, atol=1e-5)
        else:
            assert found.figures is None
        at += size + 1
    assert len(found.before) == at - 3 and not set(found.after) & {0} and found.before[0] == 0


def test_the_layer_is_chosen_first_and_penalties_tried_for_it_alone(
    host: tuple[Any, Any], tmp_path: Path
) -> None:
    model, tokenizer = host
    said: list[str] = []
    probe = train_probe(model, tokenizer, "tiny", EXAMPLES, tmp_path, folds=3, say=said.append)
    for head, made in probe.card["heads"].items():
        layers = made["average_precision_by_layer"]
        assert layers[str(made["layer"])] == max(layers.values())
        tried = [line for line in said if line.startswith(f"{head}: layer") and "penalty" in line]
        assert len(tried) == len(PENALTIES)
        assert all(line.startswith(f"{head}: layer {made['layer']}, ") for line in tried)
    for file in SHIPPED.glob("*/probe.json"):  # as on the cards of those that come with the package
        for made in json.loads(file.read_text("utf-8"))["heads"].values():
            layers = made["average_precision_by_layer"]
            assert layers[str(made["layer"])] == max(layers.values())


def test_logistic_regression_and_threshold_by_hand() -> None:
    # One feature, 3 of 4 ones at x=1 and 1 of 4 at x=0: logits log 3 and -log 3.
    x = np.array([[1]] * 4 + [[0]] * 4, np.float32)
    y = np.array([1, 1, 1, 0, 1, 0, 0, 0], bool)
    weight, bias = fit_logistic(x, y, 0.0)
    assert bias == pytest.approx(-np.log(3), abs=1e-3) and weight[0] == pytest.approx(2 * np.log(3), abs=2e-3)
    threshold, f1 = best_f1(np.array([0.9, 0.8, 0.8, 0.2], np.float32), np.array([1, 1, 0, 0], bool))
    assert threshold == pytest.approx(0.5) and f1 == pytest.approx(4 / 5)


def test_the_penalty_is_of_standardised_states_and_weights_count_rows() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((300, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 0]).astype(np.float32)
    y = x[:, 0] + rng.standard_normal(300) > 0.5
    found = minimize(  # the same objective, without gradient or curvature
        lambda t: float(
            np.logaddexp(0, -np.where(y, 1, -1) * ((x - x.mean(0)) / x.std(0) @ t[:4] + t[4])).mean()
            + 0.05 / 2 * (t[:4] ** 2).sum()
        ),
        np.zeros(5),
    ).x
    weight, bias = fit_logistic(x, y, 0.05)
    assert np.allclose(weight * x.std(0), found[:4], atol=2e-3)
    assert bias + weight @ x.mean(0) == pytest.approx(found[4], abs=2e-3)
    # A column of ones and zeros: four rows as the eight by hand above, counted by weight.
    counted = np.array([3, 1, 1, 3])
    weight, bias = fit_logistic(
        np.array([[1], [1], [0], [0]], np.float32), np.array([1, 0, 1, 0], bool), 0.0, counted
    )
    assert bias == pytest.approx(-np.log(3), abs=1e-3) and weight[0] == pytest.approx(2 * np.log(3), abs=2e-3)


def test_copies_are_corrupted_where_the_answer_is_supported() -> None:
    clean = [replace(each, spans=()) for each in EXAMPLES]
    assert corrupted(EXAMPLES, 1.0) == [] and corrupted(clean, 0.0) == []
    made = corrupted(clean, 0.5, seed=1)
    assert made == corrupted(clean, 0.5, seed=1) and 0 < len(made) < len(clean)
    assert all(each.spans and each.context in {one.context for one in clean} for each in made)
    assert len(corrupted(clean, 1.0)) == len(clean)
    some = drawn_share(clean, 0.5)
    assert (
        0 < len(some) < len(clean) == len(drawn_share(clean, 1.0))
        and drawn_share(clean[::-1], 0.5) == some[::-1]
    )


def test_additional_data_is_not_validated_on_and_the_same_seed_gives_the_same_card(
    host: tuple[Any, Any], tmp_path: Path
) -> None:
    # The additional labels are all wrong: validation finds that they are worth nothing.
    wrong = [replace(each, id="w" + each.id, spans=((0, 5),)) for each in EXAMPLES]
    one, other = (
        train_probe(*host, "tiny", EXAMPLES, tmp_path / name, also=wrong, folds=3, say=lambda _: None)
        for name in ("a", "b")
    )
    assert one.card == other.card
    assert all(torch.equal(one.weights[head], other.weights[head]) for head in ("before", "after"))
    assert one.card["data"]["additional_answers"] == len(EXAMPLES)
    assert one.card["heads"]["after"]["additional_data_weight"] == 0.0
    assert one.card["heads"]["after"]["validation"]["f1"] > 0.95
    assert one.card["data"]["contexts"].split() == sorted({context_key(e.context)[:8] for e in EXAMPLES})


def test_training_needs_both_labels(host: tuple[Any, Any], tmp_path: Path) -> None:
    clean = [Example(each.id, each.context, "", "cats") for each in EXAMPLES[:4]]
    with pytest.raises(ValueError, match="expected tokens of both labels, got 0"):
        train_probe(*host, "tiny", clean, tmp_path, say=lambda _: None)


def test_the_command(host: tuple[Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = host
    model.save_pretrained(tmp_path / "host")
    tokenizer.save_pretrained(tmp_path / "host")
    rows = [
        {"id": each.id, "context": each.context, "answer": each.answer, "spans": each.spans}
        for each in EXAMPLES
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = ["train", "probe", "--host", str(tmp_path / "host"), "--folds", "3"]
    out = tmp_path / "out"
    assert main([*arguments, "--data", str(data), "--out", str(out), "--layers", "1", "2"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["host"]["layers"] == 2 and card == Probe.load(out).card
    assert main([*arguments, "--data", str(data), "--out", str(out), "--layers", "3"]) == 2
    assert "expected layers from 1 to 2, got 3" in capsys.readouterr().err
    assert main([*arguments, "--data", str(tmp_path / "none"), "--out", str(out)]) == 2
    capsys.readouterr()
    assert main([*arguments, "--data", str(data), "--out", str(out), "--test-file", str(data)]) == 2
    assert "expected no context of" in capsys.readouterr().err
