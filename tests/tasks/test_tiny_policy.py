"""The tiny policy: a tokenizer that loses nothing; a warm-up that is the same again, cached, and leaves no trace."""

import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError
from exgrpo.tasks import get_task, tiny_policy
from exgrpo.tasks.base import WarmUp
from exgrpo.tasks.tiny_policy import PolicySize, default_cache_dir, make_policy, make_tokenizer, warm_policy

SHORT = WarmUp(batches=20, batch_size=16, rise=5)
NAMES = ("chains", "free_order", "sums", "countdown")


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_round_trips_every_text(name, tmp_path):
    task = get_task(name)
    tokenizer = make_tokenizer(task)
    tokenizer.save_pretrained(tmp_path)
    again = type(tokenizer).from_pretrained(tmp_path)
    texts = [text for pair in task.demonstrations(200) for text in pair]
    for tok in (tokenizer, again):
        ids = tok(texts)["input_ids"]
        assert tok.batch_decode(ids, skip_special_tokens=True) == texts
        assert all(row[0] == tok.bos_token_id and tok.unk_token_id not in row for row in ids)
        assert tok.pad_token_id != tok.eos_token_id
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert len(tokenizer) <= 64


@given(st.text(alphabet=get_task("chains").alphabet))
def test_any_text_of_the_alphabet_round_trips(text):
    tokenizer = make_tokenizer(get_task("chains"))
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_a_completion_has_one_token_a_character():
    for name in NAMES:
        task = get_task(name)
        tokenizer = make_tokenizer(task)
        for question in task.draw("train", 50):
            text = task.solution(question)
            assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == len(text)


def test_the_policy_has_about_100_000_weights_and_the_right_special_ids():
    tokenizer = make_tokenizer(get_task("chains"))
    model = make_policy(tokenizer)
    assert 90_000 < sum(p.numel() for p in model.parameters()) < 110_000
    for config in (model.config, model.generation_config):
        assert config.pad_token_id == tokenizer.pad_token_id
        assert config.bos_token_id == tokenizer.bos_token_id
        assert config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache")
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    model, tokenizer = warm_policy(get_task("chains"), 0, root, warm_up=SHORT)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    return root, model, tokenizer


def test_it_is_cached_and_loads_bit_equal(warmed, monkeypatch):
    root, model, _ = warmed
    monkeypatch.setattr(tiny_policy, "_train", lambda *args: pytest.fail("trained again"))
    again, tokenizer = warm_policy(get_task("chains"), 0, root, warm_up=SHORT)
    assert equal(model, again)
    assert not again.training
    assert again.config.use_cache
    assert again.dtype == torch.float32
    (entry,) = (root / "tiny-policy").iterdir()
    assert {p.name for p in entry.iterdir()} >= {"model.safetensors", "tokenizer.json", "warm_up.json"}
    assert json.loads((entry / "warm_up.json").read_text())["knobs"]["modulus"] == 10
    assert tokenizer.decode(again.generate(**tokenizer("3+4x2=", return_tensors="pt"), max_new_tokens=3)[0])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_seed_gives_the_same_weights_elsewhere(warmed, tmp_path, threads):
    _, model, _ = warmed
    kept = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(threads)  # the caller's state does not matter
        again, _ = warm_policy(get_task("chains"), 0, tmp_path, warm_up=SHORT)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(kept)
    assert equal(model, again)


@pytest.mark.slow
def test_what_matters_makes_another_policy(warmed, monkeypatch):
    """Every ingredient changes the cache key; another seed also changes the weights."""
    root, model, _ = warmed
    other, _ = warm_policy(get_task("chains"), 1, root, warm_up=SHORT)
    assert not equal(model, other)
    keys = set()
    for task, seed, size, warm_up in (
        (get_task("chains"), 0, PolicySize(), SHORT),
        (get_task("chains"), 1, PolicySize(), SHORT),
        (get_task("chains", modulus=9), 0, PolicySize(), SHORT),
        (get_task("chains"), 0, PolicySize(width=32), SHORT),
        (get_task("chains"), 0, PolicySize(), WarmUp(batches=21, batch_size=16, rise=5)),
        (get_task("sums"), 0, PolicySize(), SHORT),
    ):
        keys.add(json.dumps(tiny_policy._recipe(task, seed, size, warm_up), sort_keys=True))
    monkeypatch.setattr(tiny_policy, "FORMAT", 0)
    keys.add(json.dumps(tiny_policy._recipe(get_task("chains"), 0, PolicySize(), SHORT), sort_keys=True))
    assert len(keys) == 7


def test_the_prompt_carries_no_loss():
    tokenizer = make_tokenizer(get_task("chains"))
    columns = tiny_policy._encode(tokenizer, [("3+4x2=", "74")])
    (ids,), (labels,) = columns["input_ids"], columns["labels"]
    assert tokenizer.decode(ids) == "<bos>3+4x2=74<eos>"
    assert labels == [-100] * 5 + ids[5:]
    assert len(ids) == 8


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_the_shortest_warm_ups_run(batches, tmp_path, capfd):
    model, _ = warm_policy(get_task("free_order"), 0, tmp_path, warm_up=WarmUp(batches=batches, batch_size=4))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert "it/s" not in "".join(capfd.readouterr())


def test_a_second_writer_leaves_the_first_one_s_entry(tmp_path):
    entry, late = tmp_path / "entry", tmp_path / "late"
    for path in (entry, late):
        path.mkdir()
        (path / "warm_up.json").write_text(path.name)
    tiny_policy._publish(late, entry)
    assert (entry / "warm_up.json").read_text() == "entry"
    (entry / "warm_up.json").unlink()
    (entry / "rubbish").write_text("")
    with pytest.raises(OSError, match="not empty"):
        tiny_policy._publish(late, entry)


def test_a_failed_warm_up_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_policy, "_train", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        warm_policy(get_task("chains"), 0, tmp_path, warm_up=SHORT)
    assert list((tmp_path / "tiny-policy").iterdir()) == []


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("EXGRPO_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_cache_dir() == tmp_path / "a"
    monkeypatch.delenv("EXGRPO_CACHE")
    assert default_cache_dir() == tmp_path / "b" / "exgrpo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "exgrpo"


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigurationError, match="even"):
        PolicySize(width=60, heads=4)
    with pytest.raises(ConfigurationError, match="at least 1"):
        PolicySize(layers=0)
    with pytest.raises(ConfigurationError, match="batches"):
        WarmUp(batches=0)
    with pytest.raises(ConfigurationError, match="no warm-up for the task 'reasoning_gym'"):
        warm_policy(get_task("reasoning_gym"))


def equal(one, other):
    """Whether two models have the same weights, bit by bit."""
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
