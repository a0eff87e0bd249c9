"""`open_experience`: the tables of a run from Python, and completions as text, whole and token by token."""

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel

import exgrpo
from exgrpo.archive.decoding import Decoder
from exgrpo.archive.parquet import export
from exgrpo.errors import ConfigurationError, ExperienceLogError
from exgrpo.log import LogReader, Provenance
from tests.support.logs import eventful


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    eventful(folder)
    return folder


def rows_of(run, sql):
    with LogReader(run / "experience.db") as reader:
        return list(reader.rows(sql))


def test_tables_are_what_the_log_s_views_hold(run):
    with exgrpo.open_experience(run) as experience:
        questions, trajectories = experience.questions(), experience.trajectories(tokens=True, text=True)
        frame = experience.events(frame=True)
    assert questions["id"] == [n for (n,) in rows_of(run, "SELECT id FROM questions ORDER BY id")]
    assert sum(trajectories["stored"]) == rows_of(run, "SELECT count(*) FROM experience")[0][0]
    assert sum(trajectories["uses"]) == rows_of(run, "SELECT count(*) FROM replays")[0][0]
    for row in trajectories:
        assert len(row["completion_ids"]) == len(row["behaviour_logps"]) == row["length"]
        assert row["completion"] == " ".join(f"w{i}" for i in row["completion_ids"])
    assert frame["seq"].is_monotonic_increasing
    kinds = frame["kind"].value_counts()
    assert kinds["replay"] == sum(trajectories["uses"])
    assert kinds["stored"] == len(trajectories)


def test_a_kind_of_event_has_its_own_columns_and_no_other(run):
    with exgrpo.open_experience(run / "experience.db") as experience:
        replays = experience.events(kind="replay")
        assert {"trajectory", "age", "log_ratio", "ess"} < set(replays.column_names)
        assert "reason" not in replays.column_names
        with pytest.raises(ConfigurationError, match="generation, observation"):
            experience.events(kind="replays")


def test_only_the_trajectories_of_some_questions(run):
    with exgrpo.open_experience(run) as experience:
        assert set(experience.trajectories(questions=[3, 5])["question"]) == {3, 5}


def test_an_exported_folder_opens_as_a_run_does(run, tmp_path):
    with LogReader(run / "experience.db") as reader:
        export(reader, tmp_path / "exported")
    with exgrpo.open_experience(tmp_path / "exported") as there, exgrpo.open_experience(run) as here:
        assert there.exported
        stored = [row for row in here.trajectories(tokens=True) if row["stored"]]
        assert sorted(there.trajectories(tokens=True)["completion_ids"]) == sorted(
            row["completion_ids"] for row in stored
        )


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_what_is_no_run_is_refused(tmp_path, name):
    with pytest.raises(ExperienceLogError, match=r"Give an output_dir|give that file"):
        exgrpo.open_experience(tmp_path / name)


class Kept:
    """A log that keeps one tokenizer."""

    def __init__(self, tokenizer):
        self.text = tokenizer.to_str()

    def tokenizer(self, digest):
        return self.text


def byte_level():
    tokenizer = Tokenizer(BPE({c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    return tokenizer


@pytest.mark.parametrize("text", ["plain words", "naïve café ﷺ 🙂 end", "🙂", " a", ""])
def test_the_pieces_of_a_text_join_to_it(text):
    """Of a tokenizer that cuts characters into bytes; and a piece is never half a character."""
    tokenizer = byte_level()
    ids = tokenizer.encode(text).ids
    pieces = Decoder(Kept(tokenizer)).pieces(Provenance(tokenizer="t"), ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_pieces_of_bytes_that_are_no_text_still_join_to_what_is_decoded():
    tokenizer = byte_level()
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = rng.integers(0, 256, 12).tolist()
        assert "".join(Decoder(Kept(tokenizer)).pieces(Provenance(tokenizer="t"), ids)) == tokenizer.decode(ids)


def test_pieces_where_words_are_joined_by_spaces():
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert Decoder(Kept(tokenizer)).pieces(Provenance(tokenizer="t"), [0, 1, 0]) == ["a", " b", " a"]
