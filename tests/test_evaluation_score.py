from __future__ import annotations

import dataclasses
import gzip
import json
import tracemalloc

import pytest
from evaluation import CONTEXT, make_line, write_run

from lettuceprevent.cli import main
from lettuceprevent.evaluation.arms import MatchError
from lettuceprevent.evaluation.auditors import NameAuditor, NumberAuditor
from lettuceprevent.evaluation.number_metrics import MissingContext
from lettuceprevent.evaluation.prompts import read_prompts
from lettuceprevent.evaluation.runs import RunError, pack, read_lines
from lettuceprevent.evaluation.score import dump, score_prompt, score_run, table

PLAIN = "Revenue was 2400 million in {year}, which the company called a good result for all of its owners."
GOOD = "Revenue was 2400 million in 2021, which the company called a good result for all of its owners."
DIGITS = "Revenue was 2400 million in 0000000000000000000000000000000000000000000000000000000000000000."


def pair(at, other=GOOD, **options):
    prompt = f"p{at}"
    plain = PLAIN.format(year=1900 + at)
    return [make_line(prompt, "plain", plain), make_line(prompt, "avoid", other, seconds=1.5, **options)]


def run_of(tmp_path, *pairs):
    return write_run(tmp_path / "run.jsonl", [line for each in pairs for line in each])


def test_a_run_by_hand(tmp_path):
    found = score_run(run_of(tmp_path, *(pair(at) for at in range(8))))
    plain, avoid = found["arms"]["plain"], found["arms"]["avoid"]
    assert found["prompts"] == 8
    assert plain["numbers"] == {"supported": 8, "unsupported": 8}
    assert avoid["numbers"] == {"supported": 16}
    assert avoid["status"] == "ok"
    assert avoid["reduction"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert avoid["test"]["mean_difference"] == -1
    assert avoid["test"]["effect"] == -1
    assert avoid["test"]["p_value"] == pytest.approx(2 / 2**8)
    assert avoid["test"]["p_holm"] == avoid["test"]["p_value"]
    assert avoid["substitutions"] == 8  # 19xx became 2021
    assert avoid["supported_change"]["mean_difference"] == 1
    assert avoid["time_ratio"]["mean"] == 1.5
    assert avoid["rouge_l"]["mean"] == pytest.approx(17 / 18)
    assert avoid["same_as_plain"] == 0
    assert "test" not in plain
    text = table(found)
    assert "| avoid | 8 | 0 | 100% (100% to 100%) | 0.0078 | -1.00 |" in text


def strict(text):
    """JSON as the standard has it: NaN and Infinity are none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_an_interval_of_one_prompt_with_numbers_is_not_defined(tmp_path, capsys):
    lines = [line for at in range(1, 6) for line in pair(at)]
    for line in lines:
        line["answer"]["text"] = GOOD  # nothing to reduce but in one prompt
    run = write_run(tmp_path / "run.jsonl", [*pair(0), *lines])
    avoid = score_run(run)["arms"]["avoid"]
    assert avoid["reduction"] == {"mean": 1.0, "low": None, "high": None}
    assert main(["score", str(run), "--json"]) == 0
    assert strict(capsys.readouterr().out)["arms"]["avoid"]["reduction"]["low"] is None
    assert main(["score", str(run)]) == 0
    assert "| avoid | 6 | 0 | 100% (-) | 1 | -1.00 |" in capsys.readouterr().out


def test_what_is_not_defined_is_null_and_a_dash(tmp_path, capsys):
    lines = [line for at in range(3) for line in pair(at)]
    for line in lines:
        line["answer"] |= {"text": GOOD, "log_probs": []}  # nothing to reduce, and no view of the host's
        line["timings"] |= {"seconds": 0.0, "steps": 0}
    alone = make_line("p9", "alone", GOOD)  # an arm that shares no prompt with the plain one
    run = write_run(tmp_path / "run.jsonl", [*lines, alone])
    assert main(["score", str(run), "--json", "--details", str(tmp_path / "details.jsonl")]) == 0
    arms = strict(capsys.readouterr().out)["arms"]
    nothing = {"mean": None, "low": None, "high": None}
    assert arms["avoid"]["reduction"] == arms["avoid"]["time_ratio"] == nothing
    assert arms["avoid"]["time_ratio_per_step"] is None
    assert arms["avoid"]["perplexity_ratio"] is None
    assert arms["alone"]["unsupported_per_answer"] == nothing
    details = [strict(line) for line in (tmp_path / "details.jsonl").read_text().splitlines()]
    assert [each["shape"]["perplexity"] is None for each in details] == [True] * 6 + [False]
    assert main(["score", str(run)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| avoid"))
    assert [row.split(" | ")[at] for at in (3, 12, 14)] == ["-", "-", "- |"]


def test_a_digit_collapsed_arm_is_shown_as_failed(tmp_path):
    found = score_run(run_of(tmp_path, *(pair(at, DIGITS) for at in range(8))))
    avoid = found["arms"]["avoid"]
    assert avoid["status"] == "failed"
    assert "100% of its answers are degenerate" in avoid["reasons"]
    assert "reduction" not in avoid
    assert "test" not in avoid
    text = table(found)
    assert "| avoid | 8 | 8 | **failed** |  |  |" in text
    assert "avoid failed: 100% of its answers are degenerate" in text


def test_unmatched_arms_are_refused_when_they_are_scored(tmp_path):
    beams = {"max_new_tokens": 40, "num_beams": 4, "do_sample": False, "seed": 0}
    with pytest.raises(MatchError, match=r"'p0': .* decoding.num_beams is 1 in 'plain' and 4 in 'avoid'"):
        score_run(run_of(tmp_path, pair(0, decoding=beams)))
    other = pair(0)
    other[1]["prompt"]["sha256"] = "1234"
    with pytest.raises(MatchError, match=r"prompt\.sha256"):
        score_prompt({line["arm"]: line for line in other})
    other = pair(0)
    other[0]["prompt"]["batch"], other[1]["prompt"]["batch"] = "12", "34"
    with pytest.raises(MatchError, match=r"prompt\.batch is '12' in 'plain' and '34' in 'avoid'"):
        score_prompt({line["arm"]: line for line in other})
    del other[0]["prompt"]["batch"]  # written before there was such a field
    assert len(score_prompt({line["arm"]: line for line in other})) == 2
    other = pair(0)
    other[1]["host"]["dtype"] = "bfloat16"
    with pytest.raises(MatchError, match=r"host\.dtype is 'float32' in 'plain' and 'bfloat16' in 'avoid'"):
        score_prompt({line["arm"]: line for line in other})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line["decoding"].update(seed=1), "decoding.seed is 0 in 'p0 under plain' and 1 in"),
        (lambda line: line["data"].update(sha256="1"), "data.sha256 is '0' in 'p0 under plain' and '1' in"),
        (lambda line: line["versions"].update(torch="2"), "versions.torch is 'unset' in 'p0 under plain'"),
    ],
)
def test_prompts_answered_otherwise_than_the_first_are_refused(tmp_path, change, message):
    late = pair(3)
    for line in late:
        change(line)  # both arms alike: nothing differs within a prompt
    with pytest.raises(MatchError, match=f"expected the lines of one run, .*{message}.*'p3 under plain'"):
        score_run(run_of(tmp_path, pair(0), pair(1), pair(2), late))


def test_an_arm_is_one_setting(tmp_path):
    late = pair(2, prevention={"detector_type": "number", "units": False})
    with pytest.raises(
        MatchError, match=r"arm 'avoid': units is 'unset' in 'p0 under avoid' and False in 'p2"
    ):
        score_run(run_of(tmp_path, pair(0), pair(1), late))


def test_lines_of_an_arm_that_is_not_what_it_is_called_are_refused(tmp_path):
    prevented = [make_line("p0", "plain", GOOD, prevention={"detector_type": "number"})]
    with pytest.raises(MatchError, match=r"prevention is \{'detector_type': 'number'\} in 'p0 under plain'"):
        score_run(write_run(tmp_path / "plain.jsonl", prevented))
    unprevented = pair(0)
    unprevented[1]["prevention"] = None
    with pytest.raises(MatchError, match=r"prevention is None in 'p0 under avoid'"):
        score_run(write_run(tmp_path / "avoid.jsonl", unprevented))
    other = pair(0, prevention={"detector_type": "number", "on_unsupported": "retract"})
    with pytest.raises(MatchError, match=r"'on_unsupported': 'retract'\} in 'p0 under avoid'"):
        score_run(write_run(tmp_path / "retract.jsonl", other))


def test_a_run_without_context_or_plain_arm_is_refused(tmp_path):
    line = make_line("p", "plain", "It was 3.", context=" ")
    with pytest.raises(MissingContext, match="'p': expected a context"):
        score_run(write_run(tmp_path / "empty.jsonl", [line]))
    with pytest.raises(RunError, match="expected an arm 'plain', got avoid"):
        score_run(write_run(tmp_path / "avoid.jsonl", [pair(0)[1]]))
    with pytest.raises(RunError, match="got no answers"):
        score_run(tmp_path / "none")


def test_prompts_that_one_arm_lacks_are_left_out_of_the_comparison(tmp_path):
    found = score_run(run_of(tmp_path, *(pair(at) for at in range(3)), pair(9)[:1]))
    assert found["arms"]["plain"]["answers"] == 4
    assert found["arms"]["avoid"]["answers"] == 3
    assert found["arms"]["avoid"]["test"]["pairs"] == 3


def test_several_arms_share_one_correction(tmp_path):
    pairs = [pair(at) for at in range(6)]
    for at, each in enumerate(pairs):
        each.append(make_line(f"p{at}", "weak", GOOD if at < 2 else each[0]["answer"]["text"]))
    found = score_run(run_of(tmp_path, *pairs))["arms"]
    assert found["avoid"]["test"]["p_holm"] == pytest.approx(2 * found["avoid"]["test"]["p_value"])
    assert found["weak"]["test"]["p_holm"] == pytest.approx(found["weak"]["test"]["p_value"])


def penalised(step, token, *, row=0, first=False, action="blocked", returned=True):
    return {
        "run": 1, "step": step, "row": row, "history_length": step, "token_id": token, "literal": None,
        "first_choice": first, "action": action, "returned": returned,
    }  # fmt: skip


def test_interventions_of_model_detectors_are_counted_by_step(tmp_path):
    items = [
        penalised(3, 1),
        penalised(3, 2),  # beside a first choice that stands
        penalised(5, 1, first=True, action="forced"),
        penalised(5, 2),
        penalised(5, 1, first=True, action="forced"),  # a literal detector blocks it, too
        penalised(8, 1, returned=False, first=True),
    ]
    counters = score_run(run_of(tmp_path, pair(0, interventions=items)))["arms"]["avoid"]["counters"]
    named = {name: counters[name] for name in ("interventions", "first_choices", "penalised", "forced")}
    assert named == {"interventions": 2, "first_choices": 1, "penalised": 5, "forced": 1}


def test_batches_share_counters(tmp_path):
    lines = [*pair(0), *pair(1)]
    for line in lines:
        line["timings"]["batch"] = 2
        if line["report"]:
            line["report"]["batch_rows"] = 2
            line["report"]["counters"]["errors"] = 3
    found = score_run(write_run(tmp_path / "run.jsonl", lines))["arms"]["avoid"]
    assert found["counters"]["errors"] == 3


def test_a_run_packed_without_contexts_needs_its_prompts(tmp_path):
    run = run_of(tmp_path, *(pair(at) for at in range(3)))
    rows = [{"id": f"p{at}", "context": f"{CONTEXT}{' ' * at}"} for at in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = read_prompts(tmp_path / "prompts.jsonl")
    lines = list(read_lines(run))
    for line in lines:
        line["data"]["sha256"] = prompts.sha256
    run = write_run(tmp_path / "named.jsonl", lines)
    packed = tmp_path / "packed.jsonl.gz"
    assert pack(run, packed, contexts=False, candidates=False) == 6
    assert CONTEXT not in gzip.decompress(packed.read_bytes()).decode()
    with pytest.raises(MissingContext):
        score_run(packed)
    assert score_run(packed, prompts=prompts)["arms"] == score_run(run)["arms"]
    with pytest.raises(RunError, match=f"with hash {prompts.sha256}, got 1"):
        score_run(packed, prompts=dataclasses.replace(prompts, sha256="1"))


def test_the_command(tmp_path, capsys):
    run = run_of(tmp_path, *(pair(at) for at in range(3)))
    assert main(["score", str(run), "--details", str(tmp_path / "details.jsonl")]) == 0
    assert capsys.readouterr().out.startswith("| arm | answers | unsupported |")
    details = [json.loads(line) for line in (tmp_path / "details.jsonl").read_text().splitlines()]
    assert len(details) == 6
    assert details[0]["numbers"]["unsupported"] == 1
    assert main(["score", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arms"]["avoid"]["answers"] == 3
    assert main(["score", str(tmp_path / "none")]) == 2
    assert "expected an arm 'plain'" in capsys.readouterr().err


def test_auditors_are_tested_in_pairs_and_corrected_with_the_numbers(tmp_path, capsys):
    pairs = [pair(at) for at in range(3)]
    for lines in pairs:  # a name that the context does not have, in the plain answers alone
        lines[0]["answer"]["text"] += " It was praised by Anna."
    run = run_of(tmp_path, *pairs)
    arm = score_run(run, auditors=[NameAuditor()])["arms"]
    assert arm["plain"]["audited"] == {"names": 3 * len("Anna")}
    found = arm["avoid"]["audit_tests"]["names"]
    assert (found["changed"], found["effect"]) == (3, -1.0)
    assert found["p_holm"] == pytest.approx(2 * found["p_value"])  # of two equal p values
    assert arm["avoid"]["test"]["p_holm"] == pytest.approx(2 * arm["avoid"]["test"]["p_value"])
    assert main(["score", str(run), "--names"]) == 0
    table = capsys.readouterr().out
    assert "| arm | names: characters | names: characters, p (Holm) |" in table
    assert "| plain | 12 |" in table


def test_memory_is_flat_in_the_number_of_answers(tmp_path):
    context = "Revenue was 2400 million in 2021. " + "Nothing else is known of it. " * 1000  # 29 kB

    def peak(count):
        lines = [line for at in range(count) for line in pair(at)]
        for line in lines:
            line["prompt"]["passages"] = [context]
        path = write_run(tmp_path / f"{count}.jsonl", lines)
        lines.clear()
        tracemalloc.start()
        score_run(path)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(2)  # what is loaded once
    few, many = peak(10), peak(50)
    assert many - few < 80 * 29_000 / 4  # of the 80 more answers hardly anything is kept


def test_runs_scored_together_are_one_study(tmp_path, capsys):
    """Two runs of one comparison each: four equal p values count as four, not as two and two."""
    runs = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        runs.append(str(run_of(tmp_path / name, *(pair(at) for at in range(8)))))
    alone = score_run(runs[0])
    assert alone["tests"] == 1
    assert main(["score", *runs, "--json"]) == 0
    found = strict(capsys.readouterr().out)
    assert list(found) == runs
    for run in found.values():
        test = run["arms"]["avoid"]["test"]
        assert run["tests"] == 2 and test["p_holm"] == pytest.approx(2 * test["p_value"])
    assert main(["score", *runs, "--details", str(tmp_path / "details.jsonl")]) == 0
    text = capsys.readouterr().out
    assert text.count("p after Holm's correction over 2 tests.") == 2 and f"**{runs[1]}**" in text
    lines = [json.loads(line) for line in (tmp_path / "details.jsonl").read_text().splitlines()]
    assert [line["run"] for line in lines] == [run for run in runs for _ in range(16)]
    assert main(["score", runs[0], runs[0]]) == 2
    assert "expected different runs" in capsys.readouterr().err
    assert main(["score", *runs, "--html", str(tmp_path / "p.html")]) == 2
    assert "--html: expected one run, got 2" in capsys.readouterr().err


def test_spans_of_auditors_are_kept(tmp_path):
    lines = pair(0)
    lines[0]["answer"]["text"] += " It was praised by Anna."
    kept = []
    score_run(run_of(tmp_path, lines), auditors=[NameAuditor()], details=kept.append)
    at = lines[0]["answer"]["text"].index("Anna")
    written = [json.loads(dump(each))["spans"] for each in kept]
    assert written == [{"names": [[at, at + 4, 1.0, "name"]]}, {"names": []}]


def test_a_detector_does_not_judge_its_own_arm_unsaid(tmp_path):
    class Judge:
        name, version = "lettuceprevent", "1"

        def audit(self, sample):
            return []

    mine = {"detector_type": "number+lettuceprevent", "on_unsupported": "avoid"}
    run = run_of(tmp_path, *(pair(at, prevention=mine) for at in range(3)))
    found = score_run(run, auditors=[Judge()])
    (warning,) = found["warnings"]
    assert warning.startswith("the auditor 'lettuceprevent' is of the kind that 'avoid' was generated with")
    assert warning in table(found)
    (tmp_path / "other").mkdir()
    other = run_of(tmp_path / "other", *(pair(at) for at in range(3)))
    assert score_run(other, auditors=[Judge(), NumberAuditor()])["warnings"] == []


def test_prompts_of_a_packed_run_under_other_names(tmp_path, capsys):
    rows = [{"key": f"p{at}", "source": f"{CONTEXT}{' ' * at}"} for at in range(3)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [line for at in range(3) for line in pair(at)]
    for line in lines:
        line["data"]["sha256"] = read_prompts(path, {"id": "key", "context": "source"}).sha256
    packed = tmp_path / "packed.jsonl.gz"
    pack(write_run(tmp_path / "named.jsonl", lines), packed, contexts=False, candidates=False)
    asked = ["score", str(packed), "--prompts", str(path)]
    assert main([*asked, "--fields", "id=key", "context=source"]) == 0
    assert "| avoid | 3 | 0 |" in capsys.readouterr().out
    assert main(asked) == 2
    assert "expected a context" in capsys.readouterr().err
