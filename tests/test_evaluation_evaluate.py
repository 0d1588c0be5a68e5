from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
import time

import pytest
import torch
from evaluation import tiny_host, tiny_prompts, write_prompts

from lettuceprevent.cli import main
from lettuceprevent.evaluation.arms import (
    Arm,
    MatchError,
    OneRun,
    jsonable,
    make_arm,
    parse_arm,
    read_arms,
    require_matched,
)
from lettuceprevent.evaluation.evaluate import evaluate, launched
from lettuceprevent.evaluation.prompts import chosen, hub_prompts, read_prompts
from lettuceprevent.evaluation.runs import Run, RunError, ShardWriter, comparable, read_lines, shard_name
from lettuceprevent.profiles import Profile, describe_host, restored

ARMS = [parse_arm("plain"), parse_arm("avoid"), parse_arm("retract")]
DECODING = {"max_new_tokens": 12, "do_sample": False}
pytestmark = pytest.mark.filterwarnings("ignore:.*`past_key_values` is deprecated")


@pytest.fixture(scope="module")
def host():
    return tiny_host()


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return tiny_prompts(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="module")
def undisturbed(host, prompts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert run(host, prompts, folder) == 0
    return lines(folder)


def run(host, prompts, out, arms=ARMS, decoding=DECODING, **options):
    return evaluate(host, prompts, arms, out, decoding=decoding, say=lambda text: None, **options)


def lines(folder):
    found = [comparable(line) for line in read_lines(folder)]
    return sorted(found, key=lambda line: (line["prompt"]["id"], line["arm"]))


# --- what a line says --------------------------------------------------------------------------------


def test_each_prompt_is_answered_once_under_each_arm(undisturbed, prompts, host):
    assert [(line["prompt"]["id"], line["arm"]) for line in undisturbed] == [
        (f"p{at}", arm) for at in range(4) for arm in ("avoid", "plain", "retract")
    ]
    for line in undisturbed:
        answer = line["answer"]
        assert line["prompt"]["query"] in line["prompt"]["text"]
        assert answer["text"] == host.text(answer["ids"])
        assert len(answer["ids"]) == len(answer["log_probs"]) == len(answer["top"]) == len(answer["pieces"])
        assert (line["report"] is None) == (line["arm"] == "plain") == (line["prevention"] is None)
        assert line["decoding"] == {**DECODING, "seed": 0, "batch": 1}
        assert line["data"] == {"source": "prompts.jsonl", "sha256": prompts.sha256}


def test_the_hosts_view_is_that_of_a_full_pass(undisturbed, host):
    for line in undisturbed:
        prompt = host.encode([line["prompt"]["text"]])["input_ids"]
        ids = torch.tensor([line["answer"]["ids"]])
        with torch.inference_mode():
            logits = host.model(input_ids=torch.cat([prompt, ids], 1)).logits[0, prompt.shape[1] - 1 : -1]
        spread = torch.log_softmax(logits, -1)
        wanted = spread.gather(1, ids[0, :, None])[:, 0]
        assert torch.allclose(torch.tensor(line["answer"]["log_probs"]), wanted, atol=2e-4)
        best = spread.exp().max(-1).values
        assert torch.allclose(torch.tensor(line["answer"]["top_probs"]), best, atol=2e-4)
        if line["arm"] == "plain":  # greedy: the first choice each time
            assert line["answer"]["ids"] == logits.argmax(-1).tolist()


def test_batches_and_beams(host, prompts, tmp_path, undisturbed):
    assert run(host, prompts, tmp_path / "batched", batch=3) == 0
    batched = lines(tmp_path / "batched")
    assert [line["answer"]["ids"] for line in batched] == [line["answer"]["ids"] for line in undisturbed]
    assert {
        line["report"]["batch_rows"] for line in batched if line["report"] and line["prompt"]["id"] < "p3"
    } == {3}
    assert run(host, prompts, tmp_path / "beams", decoding={**DECODING, "num_beams": 3}) == 0
    assert {line["decoding"]["num_beams"] for line in lines(tmp_path / "beams")} == {3}


def test_sampling_gives_the_same_lines_again(host, prompts, tmp_path):
    decoding = {**DECODING, "do_sample": True, "temperature": 2.0}
    for name in ("a", "b"):
        assert run(host, prompts, tmp_path / name, decoding=decoding, arms=ARMS[:1]) == 0
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert run(host, prompts, tmp_path / "c", decoding=decoding, arms=ARMS[:1], seed=1) == 0
    assert lines(tmp_path / "a") != lines(tmp_path / "c")


# --- interrupted -------------------------------------------------------------------------------------


def test_stopping_and_going_on_gives_the_same_lines(host, prompts, tmp_path, undisturbed):
    left = [run(host, prompts, tmp_path, stop_after=0) for _ in range(13)]
    assert left == [*range(11, -1, -1), 0]
    assert lines(tmp_path) == undisturbed


def test_several_processes_share_the_work_and_may_change_in_number(host, prompts, tmp_path, undisturbed):
    assert run(host, prompts, tmp_path, process=1, processes=3) == 0
    assert {line["prompt"]["id"] for line in lines(tmp_path)} == {"p1"}
    for process in (0, 1):
        assert run(host, prompts, tmp_path, process=process, processes=2) == 0
    assert lines(tmp_path) == undisturbed
    with ShardWriter(shard_name(tmp_path, 0)), pytest.raises(RunError, match="only writer"):
        run(host, prompts, tmp_path)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({}, (0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (5, 8, 1)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            (1, 2, 1),
        ),
    ],
)
def test_which_process_of_a_launch_this_is(monkeypatch, names, wanted):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert launched() == wanted


def test_a_batch_half_of_which_was_written_is_completed(host, prompts, tmp_path):
    run(host, prompts, tmp_path / "whole", batch=2)
    run(host, prompts, tmp_path / "torn", batch=2)
    shard = shard_name(tmp_path / "torn", 0)
    shard.write_bytes(b"".join(shard.read_bytes().splitlines(keepends=True)[:3]))
    assert run(host, prompts, tmp_path / "torn", batch=2) == 0
    assert lines(tmp_path / "torn") == lines(tmp_path / "whole")


def test_killed_ten_times_and_resumed_gives_the_same_lines(host, tmp_path):
    prompts = tiny_prompts(tmp_path, 16)
    decoding = {"max_new_tokens": 40, "do_sample": False}
    run(host, prompts, tmp_path / "whole", decoding=decoding)
    moments, shard = random.Random(0), shard_name(tmp_path / "killed", 0)
    for kill in range(10):
        before = shard.stat().st_size if shard.exists() else 0
        child = os.fork()
        if child == 0:
            run(host, prompts, tmp_path / "killed", decoding=decoding)
            os._exit(0)
        late = time.monotonic() + 60 * (kill % 2)  # every other one not before a line has come
        while time.monotonic() < late and (not shard.exists() or shard.stat().st_size <= before):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert 5 <= len(lines(tmp_path / "killed")) < 48
    assert run(host, prompts, tmp_path / "killed", decoding=decoding) == 0
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")


# --- what is refused ---------------------------------------------------------------------------------


def test_unmatched_beams_are_refused(host, prompts, tmp_path):
    arms = [parse_arm("plain:num_beams=1"), parse_arm("number:on_unsupported=avoid,num_beams=4")]
    with pytest.raises(MatchError, match="num_beams is 1 in 'plain' and 4 in 'number'"):
        run(host, prompts, tmp_path, arms=arms)
    with pytest.raises(MatchError, match="num_beams is 'unset' in 'plain' and 4 in 'number'"):
        run(host, prompts, tmp_path, arms=[ARMS[0], arms[1]])
    assert not list(tmp_path.iterdir())


def test_another_setting_does_not_go_into_the_same_run(host, prompts, tmp_path):
    run(host, prompts, tmp_path, stop_after=0)
    with pytest.raises(
        MatchError, match=r"decoding\.max_new_tokens is 8 in 'this call' and 12 in 'p0 under plain'"
    ):
        run(host, prompts, tmp_path, decoding={**DECODING, "max_new_tokens": 8})
    with pytest.raises(MatchError, match=r"decoding\.seed is 1 in 'this call' and 0 in"):
        run(host, prompts, tmp_path, seed=1)
    run(host, prompts, tmp_path, stop_after=0)
    other = [ARMS[0], make_arm("avoid", {"units": False}), ARMS[2]]
    with pytest.raises(MatchError, match=r"arm 'avoid': units is False in 'this call' and 'unset' in"):
        run(host, prompts, tmp_path, arms=other)
    assert run(host, prompts, tmp_path, arms=[*ARMS, make_arm("loose", {"units": False})]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line["decoding"].update(num_beams=2), "decoding.num_beams is 'unset' in 'this call'"),
        (lambda line: line["host"].update(dtype="float16"), "host.dtype is 'float32' in 'this call'"),
        (
            lambda line: line["prevention"].update(units=False),
            "arm 'retract': units is 'unset' in 'this call'",
        ),
    ],
)
def test_every_line_that_is_there_is_compared(undisturbed, host, prompts, tmp_path, change, message):
    late = copy.deepcopy([{**line, "timings": {}} for line in undisturbed])
    change(late[-1])
    with ShardWriter(shard_name(tmp_path, 0)) as writer:
        writer.append(late)
    with pytest.raises(MatchError, match=f"{message}.*'p3 under retract'"):
        run(host, prompts, tmp_path)


def first(prompts, count):
    return chosen(prompts, limit=count)


def test_a_prompt_does_not_change_its_batch(host, prompts, tmp_path):
    decoding = {**DECODING, "do_sample": True}
    assert run(host, first(prompts, 3), tmp_path, batch=2, decoding=decoding, arms=ARMS[:1]) == 0
    # p2 was alone in its batch and would now be seeded and padded with p3; p0 and p1 stay together
    with pytest.raises(MatchError, match=r"taken up again.* 'p2' is in another batch of prompts"):
        run(host, prompts, tmp_path, batch=2, decoding=decoding, arms=ARMS[:1])
    assert run(host, first(prompts, 2), tmp_path / "even", batch=2, decoding=decoding, arms=ARMS[:1]) == 0
    assert run(host, prompts, tmp_path / "even", batch=2, decoding=decoding) == 0
    assert len({line["prompt"]["batch"] for line in lines(tmp_path / "even")}) == 2
    assert run(host, first(prompts, 1), tmp_path / "single") == run(host, prompts, tmp_path / "single") == 0


def test_lines_from_before_batches_were_named_go_on(host, prompts, tmp_path, undisturbed):
    old = copy.deepcopy([{**line, "timings": {}} for line in undisturbed[:4]])
    for line in old:
        del line["prompt"]["batch"]
    with ShardWriter(shard_name(tmp_path, 0)) as writer:
        writer.append(old)
    assert run(host, prompts, tmp_path) == 0
    assert len(lines(tmp_path)) == 12


def test_arms(tmp_path):
    assert parse_arm("plain") == Arm("plain")
    assert parse_arm("avoid") == Arm("avoid", {"detector_type": "number", "on_unsupported": "avoid"})
    assert parse_arm("x:skip_threshold=0.9, penalty=-inf,top_k=3") == Arm(
        "x", {"detector_type": "number", "skip_threshold": 0.9, "penalty": float("-inf")}, {"top_k": 3}
    )
    assert parse_arm("y:detector_type=null").prevention is None
    (tmp_path / "arms.json").write_text('{"plain": {}, "n": {"detector_type": "number+lettuceprevent"}}')
    assert [arm.name for arm in read_arms(tmp_path / "arms.json")] == ["plain", "n"]
    for text, message in [
        ("other", "one of plain, avoid"),
        (":x=1", "expected NAME"),
        ("x:units", "key=value"),
    ]:
        with pytest.raises(ValueError, match=message):
            parse_arm(text)
    with pytest.raises(ValueError, match="no skip_threshold without a detector"):
        parse_arm("x:detector_type=null,skip_threshold=1")
    with pytest.raises(ValueError, match="a name of its own"):
        require_matched([Arm("a"), Arm("a")], {})
    (tmp_path / "arms.json").write_text("[]")
    with pytest.raises(ValueError, match="object of objects"):
        read_arms(tmp_path / "arms.json")


@pytest.mark.parametrize("policy", ["avoid", "substitute", "retract"])
def test_an_arm_called_like_a_policy_has_it(tmp_path, policy):
    assert parse_arm(f"{policy}:units=false").prevention == {
        "detector_type": "number",
        "on_unsupported": policy,
        "units": False,
    }
    assert parse_arm(f"{policy}:detector_type=lettuceprevent").prevention["on_unsupported"] == policy
    (tmp_path / "arms.json").write_text(json.dumps({policy: {}, "mine": {"units": False}}))
    alone, mine = read_arms(tmp_path / "arms.json")
    assert alone == parse_arm(policy)
    assert "on_unsupported" not in mine.prevention
    other = "retract" if policy == "avoid" else "avoid"
    for call, message in [
        (
            lambda: parse_arm(f"{policy}:on_unsupported={other}"),
            f"expected on_unsupported={policy}, got on_un",
        ),
        (lambda: parse_arm(f"{policy}:detector_type=null"), "expected no on_unsupported without a detector"),
        (lambda: Arm(policy), f"expected on_unsupported={policy}, got no prevention"),
        (lambda: Arm(policy, {"detector_type": "number"}), f"expected on_unsupported={policy}, got on_un"),
    ]:
        with pytest.raises(ValueError, match=f"arm '{policy}': {message}"):
            call()


def test_a_plain_arm_has_no_prevention(tmp_path):
    assert parse_arm("plain:detector_type=null,num_beams=2") == Arm("plain", None, {"num_beams": 2})
    with pytest.raises(
        ValueError, match=r"arm 'plain': expected no prevention, got units=False, detector_type="
    ):
        parse_arm("plain:units=false")
    (tmp_path / "arms.json").write_text('{"plain": {"detector_type": "number"}}')
    with pytest.raises(ValueError, match=r"arm 'plain': expected no prevention, got detector_type=number"):
        read_arms(tmp_path / "arms.json")


# --- prompts -----------------------------------------------------------------------------------------


def test_prompts_from_a_file(tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [
        {"id": 1, "query": "q", "context": "one", "task_type": "QA"},
        {"id": 2, "query": "q", "context": "one", "task_type": "QA"},
        {"id": 3, "query": "q", "passages": ["one", "two"], "task_type": "Summary"},
        {"context": "three\u2028more"},
    ]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    found = read_prompts(path)
    assert [prompt.id for prompt in found.prompts[:2]] == ["1", "3"]
    assert found.prompts[1].passages == ("one", "two")
    assert found.left_out == {"repeated": 1}
    few = chosen(found, per_task=1, longest=8, length=lambda prompt: len(prompt.text))
    assert [prompt.text for prompt in few.prompts] == ["one", "one\n\ntwo"]
    assert few.left_out == {"repeated": 1, "too long": 1}
    path.write_text('{"text": "one"}\n')
    assert read_prompts(path, {"context": "text"}).prompts[0].text == "one"
    for text, message in [
        ('{"context": " "}', "row 1: expected a context, got an empty one"),
        ('{"id": 1}', "row 1: expected a context, a string"),
        ('{"id": 1, "context": "a"}\n{"id": 1, "context": "b"}', "row 2: expected an id of its own"),
        ("{", "expected JSON lines"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_prompts(path)


def test_prompts_from_the_hub_need_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'lettuceprevent\[data\]'"):
        hub_prompts("wandb/RAGTruth-processed")


def test_prompts_from_the_hub(monkeypatch):
    row = {
        "id": "7",
        "query": "q",
        "context": "c",
        "output": "o",
        "task_type": "QA",
        "hallucination_labels": "[]",
    }

    class Datasets:
        @staticmethod
        def load_dataset(name, split):
            assert (name, split) == ("wandb/RAGTruth-processed", "test")
            return [row, {**row, "id": "8"}]

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    found = hub_prompts("wandb/RAGTruth-processed")
    assert [(p.id, p.text, p.query, p.task) for p in found.prompts] == [("7", "c", "q", "QA")]
    assert found.source == "wandb/RAGTruth-processed:test"


# --- the command -------------------------------------------------------------------------------------


def test_the_command(host, tmp_path, capsys):
    host.model.save_pretrained(tmp_path / "host")
    host.tokenizer.save_pretrained(tmp_path / "host")
    common = [
        "evaluate",
        "--model",
        str(tmp_path / "host"),
        "--prompts",
        str(write_prompts(tmp_path / "p.jsonl")),
    ]
    common += ["--out", str(tmp_path / "run"), "--max-new-tokens", "6", "--limit", "2", "--device", "cpu"]
    assert main([*common, "--minutes", "0"]) == 3
    assert "4 answers, 0 are there, 4 to come" in capsys.readouterr().err
    assert main(common) == 0
    said = capsys.readouterr().err
    assert "4 answers, 1 are there, 3 to come" in said
    assert "4/4" in said
    with Run(tmp_path / "run") as found:
        assert len(found) == 4
        assert sorted(found.arms) == ["plain", "retract"]
    assert main([*common, "--num-beams", "2"]) == 2
    assert "decoding.num_beams is 2 in 'this call' and 1 in" in capsys.readouterr().err
    assert main([*common, "--arms", "plain", "x:num_beams=4"]) == 2
    assert "arms differ in more than prevention" in capsys.readouterr().err


def test_an_arm_from_a_profile(host, tmp_path):
    """Its options are the profile's, written out in the lines; it warns as generate() does."""
    path = tmp_path / "profile.json"
    options = {"on_unsupported": "avoid", "units": False, "skip_threshold": 0.9, "penalty": "-inf"}
    here = {**describe_host(host.model, host.vocabulary), "vocabulary": "another"}
    Profile({"type": "number", "versions": {}}, options, here).save(path)
    arm = parse_arm(f"tuned:profile={path},skip_threshold=0.5")
    assert arm.prevention == {
        "detector_type": "number",
        "on_unsupported": "avoid",
        "units": False,
        "skip_threshold": 0.5,
        "penalty": float("-inf"),
        "profile": str(path),
    }
    assert parse_arm(f"retract:profile={path}").prevention["on_unsupported"] == "retract"
    prompts = tiny_prompts(tmp_path, 1)
    with pytest.warns(UserWarning, match="host's vocabulary is"):
        evaluate(host, prompts, [Arm("plain"), arm], tmp_path / "run", decoding=DECODING)
    with Run(tmp_path / "run") as run:
        line = run.answers("p0")["tuned"]
    assert line["prevention"]["units"] is False and line["prevention"]["penalty"] == "-inf"
    assert line["report"]["options"]["skip_threshold"] == 0.5
    with pytest.raises(ValueError, match="expected a JSON file at"):
        parse_arm(f"x:profile={tmp_path / 'none.json'}")


def test_an_infinite_penalty_goes_to_the_file_and_back(host, tmp_path):
    (tmp_path / "arms.json").write_text('{"plain": {}, "a": {"penalty": "-inf"}}')
    arms = read_arms(tmp_path / "arms.json")
    assert arms[1].prevention["penalty"] == float("-inf")
    prompts = tiny_prompts(tmp_path, 1)
    for _ in range(2):  # taken up again, the lines are of the same arm
        assert evaluate(host, prompts, arms, tmp_path / "run", decoding=DECODING) == 0
    for shard in (tmp_path / "run").glob("*.jsonl"):
        for text in shard.read_text(encoding="utf-8").splitlines():
            json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert restored(jsonable(arms[1].prevention)) == arms[1].prevention


def test_a_line_knows_its_host(host, prompts, tmp_path, undisturbed):
    """By weights and generation config, not by name; lines from before that are of any host."""
    told = undisturbed[0]["host"]
    assert len(told["weights"]) == len(told["shape"]) == 16
    assert "transformers_version" not in told["generation"]
    run(host, prompts, tmp_path / "one")
    other = tiny_host()
    with torch.no_grad():
        for weight in other.model.model.layers.parameters():
            weight.neg_()
    with pytest.raises(MatchError, match=r"host\.weights is "):
        run(other, prompts, tmp_path / "one")
    cooler = tiny_host()
    cooler.model.generation_config.repetition_penalty = 1.3
    with pytest.raises(MatchError, match=r"host.generation is .*1.3"):
        run(cooler, prompts, tmp_path / "one")
    shard = next((tmp_path / "one").glob("*.jsonl"))
    lines = [json.loads(text) for text in shard.read_text(encoding="utf-8").splitlines()]
    for each in lines:
        for name in ("shape", "weights", "generation"):
            del each["host"][name]
    shard.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    assert run(other, prompts, tmp_path / "one") == 0


def together(lines):
    one = OneRun()
    for line in lines:
        one.require(line)


def test_a_line_knows_its_detectors(undisturbed):
    lines = copy.deepcopy(undisturbed)
    guarded = [line for line in lines if line["prevention"] is not None]
    assert all(line["report"]["options"]["versions"]["number"] for line in guarded)
    together(lines)
    guarded[-1]["report"]["options"]["versions"]["number"] = "another"
    with pytest.raises(MatchError, match="detector number is "):
        together(lines)
    del guarded[-1]["report"]["options"]["versions"]
    together(lines)
