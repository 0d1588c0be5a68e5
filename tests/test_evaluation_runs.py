from __future__ import annotations

import json

import pytest

from lettuceprevent.evaluation.runs import (
    FORMAT,
    Run,
    RunError,
    ShardWriter,
    comparable,
    pack,
    read_lines,
    shard_name,
)


def line(prompt: str, arm: str, text: str = "fünf", seconds: float = 1.0):
    return {
        "format": FORMAT,
        "prompt": {"id": prompt},
        "arm": arm,
        "prevention": None,
        "decoding": {},
        "host": {},
        "answer": {"text": text},
        "timings": {"seconds": seconds},
    }


def write(path, *lines):
    with ShardWriter(path) as writer:
        writer.append(lines)
        return writer.cut


def test_what_is_written_is_read(tmp_path):
    write(shard_name(tmp_path, 0), line("a", "plain"), line("b", "plain"))
    write(shard_name(tmp_path, 1), line("a", "number"), line("b", "number", "\ud800 alone"))
    with Run(tmp_path) as run:
        assert run.arms == ["plain", "number"]
        assert run.prompts == ["a", "b"]
        assert len(run) == 4 == len(list(run))
        assert ("a", "number") in run
        assert ("c", "plain") not in run
        assert run.answers("b")["number"]["answer"]["text"] == "\ud800 alone"
        assert list(run.answers("a")) == ["plain", "number"]


def test_a_single_file_and_its_packed_form(tmp_path):
    path = tmp_path / "run.jsonl"
    write(path, line("a", "plain"), line("a", "number"))
    assert pack(path, tmp_path / "one.gz") == 2
    pack(path, tmp_path / "packed.jsonl.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "packed.jsonl.gz").read_bytes()
    with Run(tmp_path / "packed.jsonl.gz") as packed, Run(path) as plain:
        assert sorted(packed, key=str) == sorted(plain, key=str) == sorted(read_lines(path), key=str)


def test_a_run_that_is_not_there_is_empty(tmp_path):
    with Run(tmp_path / "none") as run:
        assert len(run) == 0
        assert run.first() is None


def test_a_torn_last_line_is_not_read_and_is_cut(tmp_path):
    path = shard_name(tmp_path, 0)
    write(path, line("a", "plain"), line("b", "plain"))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        with Run(tmp_path) as run:
            assert run.prompts == ["a"]
        assert write(path, line("b", "plain")) == size - first
        assert path.read_bytes() == whole


def test_a_last_line_that_ends_but_is_no_json_is_cut(tmp_path):
    path = shard_name(tmp_path, 0)
    write(path, line("a", "plain"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0\0\0\0\n")
    assert write(path, line("b", "plain")) == 5
    assert [each["prompt"]["id"] for each in read_lines(path)] == ["a", "b"]


def test_a_broken_line_in_the_middle_raises(tmp_path):
    path = shard_name(tmp_path, 0)
    write(path, line("a", "plain"))
    path.write_bytes(b'{"format": 1\n' + path.read_bytes())
    with pytest.raises(RunError, match=r"answers-00000.jsonl, line 1: expected a JSON object"):
        Run(tmp_path)


def test_doubled_answers_and_foreign_formats_raise(tmp_path):
    write(shard_name(tmp_path, 0), line("a", "plain"))
    write(shard_name(tmp_path, 1), line("a", "plain"))
    with pytest.raises(
        RunError, match=r"answers-00001.jsonl, line 1: expected one answer per prompt and arm"
    ):
        Run(tmp_path)
    write(tmp_path / "other" / "x.jsonl", {**line("a", "plain"), "format": 99})
    with pytest.raises(RunError, match="expected format 1, got 99"):
        Run(tmp_path / "other")
    (tmp_path / "y.jsonl").write_text(json.dumps({"answer": "x"}) + "\n")
    with pytest.raises(RunError, match="a line without format, prompt"):
        Run(tmp_path / "y.jsonl")


def test_one_writer_per_shard(tmp_path):
    path = shard_name(tmp_path, 0)
    with ShardWriter(path), pytest.raises(RunError, match="only writer"):
        ShardWriter(path)
    ShardWriter(path).close()


def test_infinite_numbers_are_refused_and_timings_do_not_compare(tmp_path):
    with ShardWriter(tmp_path / "x.jsonl") as writer, pytest.raises(ValueError, match="JSON compliant"):
        writer.append([line("a", "plain", seconds=float("inf"))])
    assert comparable(line("a", "plain", seconds=1)) == comparable(line("a", "plain", seconds=2))
    assert comparable(line("a", "plain")) != comparable(line("a", "plain", "sechs"))
