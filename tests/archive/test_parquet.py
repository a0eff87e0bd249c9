"""An export is what the log held, bit by bit, readable by `datasets`, and checked when it is read back."""

import contextlib
import json
import math
import shutil
import sqlite3
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exgrpo.archive import parquet as portable_module
from exgrpo.archive.parquet import export, read_export, read_folder
from exgrpo.archive.transfer import source_of
from exgrpo.errors import ConfigurationError, ExperienceLogError, MissingExtraError
from exgrpo.log import LogReader
from tests.support.logs import DIMENSION, EVENTFUL, ORIGIN, Dataset, Run, buffer_at, eventful


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path, _ = eventful(tmp_path_factory.mktemp("log"))
    return path


@pytest.fixture
def folder(log, tmp_path):
    with LogReader(log) as reader:
        export(reader, tmp_path / "out")
    return tmp_path / "out"


def bits(trajectory):
    return (
        trajectory.completion_ids.tolist(), trajectory.behaviour_logps.tobytes(), trajectory.rewards.tobytes(),
        trajectory.step, trajectory.finish_reason, np.float32(trajectory.entropy).tobytes(), trajectory.measured_at,
        trajectory.correct, np.float64([trajectory.advantage, trajectory.quality]).tobytes(),
        None if trajectory.embedding is None else trajectory.embedding.tobytes(),
    )  # fmt: skip


def stored(path, position=None):
    """Key and bits of all that a log holds, oldest first, entropies as measured last."""
    with LogReader(path) as reader:
        records = dict(reader.questions())
        buffer, state = buffer_at(reader, position)
        slots = buffer.live_slots()
        rows = []
        for slot in slots[np.argsort(buffer.column("serial")[slots])].tolist():
            t = buffer.get(slot)
            measured = {name: buffer.column(name)[slot].item() for name in ("entropy", "entropy_step")}
            rows.append((records[t.question].key, bits(replace(t, **measured))))
        return rows, state.step


def read(folder):
    source = read_folder(folder)
    return [(source.questions[k.trajectory.question].record.key, bits(k.trajectory)) for k in source.trajectories]


# There and back -------------------------------------------------------------------------------------------------------


def test_it_comes_back_bit_by_bit(log, folder):
    rows, end = stored(log)
    assert {row[7] for _, row in rows} == {True, False}
    assert all(row[9] for _, row in rows)
    assert read(folder) == rows
    found = read_export(folder)
    assert (found.source.end, found.origin, found.logp_dtype) == (end, ORIGIN, "float32")
    with LogReader(log) as reader:
        source = source_of(reader)
        assert found.log == reader.id
        assert list(found.source.questions) == list(source.questions)
        assert any(question.retired for question in source.questions)
        assert [k.origin for k in found.source.trajectories] == [k.origin for k in source.trajectories]


def test_an_earlier_position(log, tmp_path):
    with LogReader(log) as reader:
        position = reader.position_at_step(7)
        export(reader, tmp_path / "out", position)
    rows, end = stored(log, position)
    assert (read(tmp_path / "out"), read_export(tmp_path / "out").source.end) == (rows, end)


def test_it_can_be_read_more_than_once(folder):
    source = read_folder(folder)
    assert len(list(source.trajectories)) == len(list(source.trajectories)) > 0


def test_many_parts_and_row_groups(log, tmp_path, monkeypatch):
    monkeypatch.setattr(portable_module, "ROWS_PER_PART", 7)
    monkeypatch.setattr(portable_module, "TOKENS_PER_GROUP", 10)
    with LogReader(log) as reader:
        report = export(reader, tmp_path / "out")
    rows, _ = stored(log)
    assert read(tmp_path / "out") == rows
    parts = sorted((tmp_path / "out" / "trajectories").iterdir())
    assert [part.name for part in parts] == [f"part-{i:05d}.parquet" for i in range(len(parts))]
    assert len(parts) > 1
    assert pq.ParquetFile(parts[0]).num_row_groups > 1
    assert (report.trajectories, report.tokens) == (len(rows), sum(len(row[0]) for _, row in rows))


@pytest.mark.slow
@settings(max_examples=20)
@given(
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["float32", "float16"]),
    generations=st.integers(1, 4),
    options=st.sampled_from([{}, {"admission": "all"}, EVENTFUL]),
)
def test_any_run_comes_back(tmp_path_factory, seed, dtype, generations, options):
    folder = tmp_path_factory.mktemp("any")
    run = Run(folder / "a.db", Dataset(6), seed=seed, logp_dtype=dtype, **options)
    run.generations(generations)
    run.close()
    with LogReader(folder / "a.db") as reader:
        export(reader, folder / "out", logp_dtype=dtype)  # float16 loses nothing of float16
    assert read(folder / "out") == stored(folder / "a.db")[0]


def test_float16_rounds_log_probs_and_says_so(log, tmp_path):
    with LogReader(log) as reader:
        export(reader, tmp_path / "out", logp_dtype="float16")
    rows, _ = stored(log)
    for (_, exact), (_, rounded) in zip(rows, read(tmp_path / "out"), strict=True):
        x, y = (np.frombuffer(values[1], np.float32) for values in (exact, rounded))
        assert (np.abs(x - y) <= np.maximum(np.abs(x) / 2048, 3e-8)).all()
        assert exact[:1] + exact[2:] == rounded[:1] + rounded[2:]
    column = pq.read_schema(tmp_path / "out/trajectories/part-00000.parquet").field("behaviour_logps")
    assert column.type.value_type == pa.float16()
    assert "float16: 11 significant bits" in (tmp_path / "out/README.md").read_text()
    with LogReader(log) as reader, pytest.raises(ConfigurationError, match="logp_dtype must be one of"):
        export(reader, tmp_path / "more", logp_dtype="int8")


def test_a_log_that_holds_no_trajectory(tmp_path):
    run = Run(tmp_path / "a.db", capacity=0)
    run.generation()
    run.close()
    with LogReader(tmp_path / "a.db") as reader:
        report = export(reader, tmp_path / "out")
    assert (report.trajectories, report.questions) == (0, 6)
    assert read(tmp_path / "out") == []


# For others -----------------------------------------------------------------------------------------------------------


def load(folder, cache, name=None):
    import datasets

    return datasets.load_dataset(str(folder), name, split="train", cache_dir=str(cache / "cache"))


def test_datasets_reads_it(log, folder, tmp_path):
    rows, end = stored(log)
    loaded = load(folder, tmp_path)
    assert loaded.column_names == [
        "id", "step", "question", "completion_ids", "behaviour_logps", "rewards", "entropy", "entropy_step", "finish_reason",
        "origin", "correct", "advantage", "quality", "embedding",
    ]  # fmt: skip
    found = []
    for row in loaded:
        rewards = np.array([math.nan if r is None else r for r in row["rewards"]], np.float32)
        entropy, *of_group = (
            math.nan if row[name] is None else row[name] for name in ("entropy", "advantage", "quality")
        )
        assert len(row["embedding"]) == DIMENSION
        found.append(
            (
                row["question"],
                (
                    row["completion_ids"], np.array(row["behaviour_logps"], np.float32).tobytes(), rewards.tobytes(),
                    row["step"], row["finish_reason"], np.float32(entropy).tobytes(), row["entropy_step"], row["correct"],
                    np.float64(of_group).tobytes(), np.float16(row["embedding"]).tobytes(),
                ),
            )
        )  # fmt: skip
    assert found == rows
    assert all(row["step"] <= end for row in loaded)
    questions = load(folder, tmp_path, "questions")
    assert set(questions["key"]) >= set(loaded["question"])
    assert json.loads(questions[0]["columns"]).keys() == {"answer"}
    with LogReader(log) as reader:
        wanted = {
            key: (successes, scorable, at, bool(retired), kept)
            for key, successes, scorable, at, retired, kept in reader.rows(
                "SELECT key, successes, scorable, observed_at, retired, stored FROM questions"
            )
        }
    counts = {key: loaded["question"][:].count(key) for key in wanted}
    assert {
        row["key"]: (row["successes"], row["scorable"], row["observed_at"], row["retired"], counts[row["key"]])
        for row in questions
    } == wanted


def test_the_card_says_what_it_is(log, folder):
    text = (folder / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert {config["config_name"]: config.get("default", False) for config in head["configs"]} == {
        "trajectories": True, "questions": False,
    }  # fmt: skip
    assert head["tags"] == ["exgrpo", "reasoning", "grpo"]
    metadata = head["exgrpo"]
    rows, end = stored(log)
    assert (metadata["format"], metadata["end_step"], metadata["trajectories"]) == (2, end, len(rows))
    assert metadata["failures"] == sum(not row[7] for _, row in rows)
    assert metadata["origins"] == {"1": vars(ORIGIN)}
    for said in ("tiny", "tok-1", "tpl-1", f"{len(rows)} trajectories", "exgrpo experience import", "load_dataset"):
        assert said in text
    for column in pq.read_schema(folder / "trajectories/part-00000.parquet").names:
        assert f"`{column}`" in text


@pytest.mark.parametrize("name", ["org/model: v2", 'a "quoted" #1', "ü\nmodel", ""])
def test_any_model_name_makes_a_card(tmp_path, name):
    run = Run(tmp_path / "a.db", origin=replace(ORIGIN, model=name))
    run.generation()
    run.close()
    with LogReader(tmp_path / "a.db") as reader:
        export(reader, tmp_path / "out")
    head = yaml.safe_load((tmp_path / "out/README.md").read_text(encoding="utf-8").split("\n---\n")[0])
    assert head["exgrpo"]["origins"]["1"]["model"] == name
    assert read_export(tmp_path / "out").origin.model == name


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("/home/me/models/tiny-1", "tiny-1"),
        ("~/runs/a/checkpoint-500", "a/checkpoint-500"),
        ("C:\\\\models\\\\tiny", "tiny"),
        ("/home/me/.cache/huggingface/hub/models--org--name/snapshots/0123abcd", "org/name"),
        ("org/name", "org/name"),
    ],
)
def test_a_card_has_no_paths_of_the_machine(tmp_path, model, shown):
    rewards = json.dumps(
        [[{"name": "math_reward", "version": "", "weight": 1.0}], {"decides": "math_reward", "above": 0.5}]
    )
    run = Run(tmp_path / "a.db", origin=replace(ORIGIN, model=model, embedding=model, rewards=rewards))
    run.generation()
    run.close()
    with LogReader(tmp_path / "a.db") as reader:
        export(reader, tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert f"Model: {shown}." in text
    assert "Reward functions: math_reward, right above 0.5." in text
    assert shown == model or model not in text.replace("\\\\\\\\", "\\\\")
    assert read_export(tmp_path / "out").origin.model == shown


def test_a_card_that_was_written_anew_still_tells(folder):
    """The Hub's tools write the head of a card in their own way."""
    text = (folder / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1]) | {"license": "mit"}
    before = read(folder)
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(head)}---\n# Mine\n")
    assert read(folder) == before
    (folder / "README.md").write_text(text.replace("tags:", "license: mit\ntags:"))
    assert read(folder) == before


def test_what_other_tools_write_wider_is_read(folder):
    before = read(folder)
    (part,) = (folder / "trajectories").iterdir()
    table = pq.read_table(part)
    wide = {
        "completion_ids": pa.large_list(pa.int64()), "behaviour_logps": pa.list_(pa.float64()), "step": pa.int64(),
        "question": pa.large_string(), "entropy": pa.float64(),
    }  # fmt: skip
    fields = [pa.field(f.name, wide.get(f.name, f.type)) for f in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), part)
    assert read(folder) == before


def test_texts_are_added(log, tmp_path):
    def decode(origin, completions):
        assert origin == ORIGIN
        return [" ".join(map(str, ids)) for ids in completions]

    with LogReader(log) as reader:
        export(reader, tmp_path / "out", decode=decode)
    loaded = load(tmp_path / "out", tmp_path)
    assert [list(map(int, row["completion"].split())) for row in loaded] == loaded["completion_ids"][:]
    assert read(tmp_path / "out") == stored(log)[0]
    assert "`completion`" in (tmp_path / "out/README.md").read_text()


# Refused --------------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_left_alone(log, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with LogReader(log) as reader:
        with pytest.raises(ExperienceLogError, match="is not empty"):
            export(reader, tmp_path)
        with pytest.raises(ExperienceLogError, match="cannot be created"):
            export(reader, tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_missing_extra_names_the_command(log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with LogReader(log) as reader, pytest.raises(MissingExtraError, match=r"pip install 'exgrpo\[trl\]'"):
        export(reader, tmp_path / "out")
    with pytest.raises(MissingExtraError, match=r"pip install 'exgrpo\[trl\]'"):
        read_folder(tmp_path)


def test_what_is_damaged_can_be_skipped(log, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy(log, copy)
    with LogReader(copy) as reader:
        numbers = [number for (number,) in reader.rows("SELECT id FROM experience ORDER BY id")]
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE tokens SET completion_ids = x'00000000' WHERE id = ?", (numbers[3],))
    connection.close()
    with LogReader(copy) as reader:
        with pytest.raises(ExperienceLogError, match=f"tokens of trajectory {numbers[3]}"):
            export(reader, tmp_path / "out")
        report = export(reader, tmp_path / "rest", skip_damaged=True)
    assert report.unreadable == [numbers[3]]
    rows, _ = stored(log)
    assert read(tmp_path / "rest") == rows[:3] + rows[4:]
    assert not list((tmp_path / "out").iterdir())  # of the one that failed


def test_a_damaged_tokenizer_can_be_skipped(log, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copy(log, copy)
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE tokenizer SET json = x'00'")
    connection.close()
    with LogReader(copy) as reader:
        with pytest.raises(ExperienceLogError, match="a tokenizer cannot be read"):
            export(reader, tmp_path / "out")
        export(reader, tmp_path / "rest", skip_damaged=True)
    assert read(tmp_path / "rest") == stored(log)[0]


@pytest.mark.parametrize("name", ["nothing", "empty", "unfinished", "other card", "another file"])
def test_what_is_no_export_is_refused(folder, tmp_path, name):
    place = tmp_path / name
    if name == "unfinished":
        (folder / "README.md").unlink()
        place = folder
    elif name == "another file":
        place.write_text("text")
    elif name != "nothing":
        place.mkdir()
        if name == "other card":
            (place / "README.md").write_text("---\npretty_name: Another\n---\nexgrpo: {}")
    with pytest.raises(ExperienceLogError, match=r"is not an export|there is no folder") as caught:
        read_folder(place)
    assert str(place) in str(caught.value)


@pytest.mark.parametrize("version", [3, 0, "one", None])
def test_another_format_is_refused(folder, version):
    card = folder / "README.md"
    card.write_text(card.read_text().replace('"format": 2', f'"format": {json.dumps(version)}'))
    with pytest.raises(ExperienceLogError, match="reads formats up to 2"):
        read_folder(folder)


def test_an_export_of_format_1_is_read(log, folder):
    """It had successes only, and said nothing of advantages, qualities, embeddings and spreads."""
    card, new = folder / "README.md", {"trajectories": SINCE_2, "questions": ["spread"]}
    card.write_text(card.read_text().replace('"format": 2', '"format": 1').replace('"embedding": "encoder-1", ', ""))
    for table, names in new.items():
        spoil(folder / table / "part-00000.parquet", **dict.fromkeys(names))
    rows, end = stored(log)
    unknown = np.float64([math.nan, math.nan]).tobytes()
    assert read(folder) == [(key, (*row[:7], True, unknown, None)) for key, row in rows]
    found = read_export(folder)
    assert (found.origin, found.source.end) == (replace(ORIGIN, embedding=""), end)
    assert {question.reward_std for question in found.source.questions} == {None}


SINCE_2 = ["correct", "advantage", "quality", "embedding"]


@pytest.mark.parametrize("name", ["origins", "origin", "end_step"])
def test_a_card_that_lacks_facts_is_refused(folder, name):
    card = folder / "README.md"
    card.write_text(card.read_text().replace(f'"{name}":', f'"no_{name}":'))
    with pytest.raises(ExperienceLogError, match=rf"README\.md: .*{name}"):
        read_folder(folder)


def spoil(part, **columns):
    """Change columns of a Parquet file: a function of its values, or None to take one away."""
    table = pq.read_table(part)
    for name, change in columns.items():
        place = table.schema.get_field_index(name)
        if change is None:
            table = table.remove_column(place)
        else:
            values = change(table.column(name).to_pylist())
            kind = values.type if isinstance(values, pa.Array) else table.schema.field(name).type
            table = table.set_column(place, name, pa.array(values, kind) if isinstance(values, list) else values)
    pq.write_table(table, part)


def at(row, value):
    return lambda values: [*values[:row], value, *values[row + 1 :]]


BAD_ROWS = {
    "more log-probs": ({"behaviour_logps": lambda rows: at(2, [*rows[2], -1.0])(rows)}, "equal length"),
    "no tokens": ({"completion_ids": at(2, []), "behaviour_logps": at(2, [])}, "non-empty"),
    "empty ids": ({"completion_ids": at(2, None)}, "completion_ids must not be empty"),
    "a missing id": ({"completion_ids": at(2, [1, None])}, "completion_ids holds an empty value"),
    "a missing log-prob": ({"behaviour_logps": at(2, [None])}, "behaviour_logps holds an empty value"),
    "infinite": ({"behaviour_logps": lambda rows: at(2, [-math.inf] * len(rows[2]))(rows)}, "finite"),
    "positive": ({"behaviour_logps": lambda rows: at(2, [0.5] * len(rows[2]))(rows)}, "at most 0"),
    "negative ids": ({"completion_ids": lambda rows: at(2, [-1] * len(rows[2]))(rows)}, "0 or more"),
    "no rewards": ({"rewards": at(2, [])}, "rewards must have shape"),
    "unknown question": ({"question": at(2, "abc")}, "its question abc is not in questions/"),
    "no question": ({"question": at(2, None)}, "question must not be empty"),
    "unknown origin": ({"origin": at(2, 7)}, "its origin 7 is not in the card"),
    "another ending": ({"finish_reason": at(2, "bored")}, "finish_reason must be one of"),
    "no step": ({"step": at(2, None)}, "step must not be empty"),
    "neither right nor wrong": ({"correct": at(2, None)}, "correct must not be empty"),
    "infinite advantage": ({"advantage": at(2, math.inf)}, "advantage must be finite"),
    "quality above 1": ({"quality": at(2, 1.5)}, "quality must lie in"),
    "embedding beyond float16": ({"embedding": at(2, [1e6])}, "embedding must have shape"),
    "embedding of nothing": ({"embedding": at(2, [])}, "embedding must have shape"),
    "embedding with a hole": ({"embedding": at(2, [1.0, None])}, "embedding holds an empty value"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named(folder, name):
    changes, said = BAD_ROWS[name]
    spoil(folder / "trajectories/part-00000.parquet", **changes)
    source = read_folder(folder)
    with pytest.raises(ExperienceLogError) as caught:
        list(source.trajectories)
    message = str(caught.value)
    assert "part-00000.parquet: row 2: " in message
    assert said in message
    assert "export it again" in message


@pytest.mark.parametrize("table", ["trajectories", "questions"])
def test_missing_columns_and_other_types_are_named(folder, table):
    part = folder / table / "part-00000.parquet"
    sound = part.read_bytes()
    names = [n for n in pq.read_schema(part).names if n != "id"]
    for name in names:
        for change, said in (
            (None, f"the column '{name}' is missing"),
            (lambda rows: pa.array([{"x": 1}] * len(rows)), f"the column '{name}' must hold"),
        ):
            part.write_bytes(sound)
            spoil(part, **{name: change})
            with pytest.raises(ExperienceLogError, match=said):
                list(read_folder(folder).trajectories)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"key": at(1, None)}, "row 1: a question must have a key"),
        ({"key": lambda keys: at(1, keys[0])(keys)}, "a question's key comes twice"),
        ({"successes": at(1, 9)}, "row 1: 9 successes of"),
        ({"successes": at(1, -1)}, "row 1: -1 successes of"),
        ({"observed_at": at(1, None)}, "at step None are impossible"),
        ({"spread": at(1, -0.5)}, r"row 1: a spread of -0\.5"),
        ({"spread": at(1, math.nan)}, "row 1: a spread of nan"),
    ],
    ids=["no key", "twice", "too many", "negative", "no step", "negative spread", "spread NaN"],
)
def test_a_bad_question_is_named(folder, changes, said):
    spoil(folder / "questions/part-00000.parquet", **changes)
    with pytest.raises(ExperienceLogError, match=said):
        read_folder(folder)


@pytest.mark.parametrize("table", ["trajectories", "questions"])
def test_damaged_and_missing_files_are_named(folder, table):
    part = folder / table / "part-00000.parquet"
    sound = part.read_bytes()
    for keep in (0, 10, len(sound) // 2, len(sound) - 1):
        part.write_bytes(sound[:keep])
        with pytest.raises(ExperienceLogError, match=rf"{part.name}: it cannot be read"):
            list(read_folder(folder).trajectories)
    part.unlink()
    with pytest.raises(ExperienceLogError, match=r"there are no files part-\*\.parquet"):
        list(read_folder(folder).trajectories)


@pytest.mark.slow
def test_a_flipped_byte_never_comes_as_another_kind_of_error(folder):
    part = folder / "trajectories/part-00000.parquet"
    sound, rng = part.read_bytes(), np.random.default_rng(0)
    for place in rng.choice(len(sound), 150, replace=False).tolist():
        data = bytearray(sound)
        data[place] ^= int(rng.integers(1, 256))
        part.write_bytes(data)
        with contextlib.suppress(ExperienceLogError):
            list(read_folder(folder).trajectories)
