"""`evaluate_policy` on a tiny model: right numbers, no trace left."""

import copy
import random
import time

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from exgrpo.errors import ConfigurationError, DatasetError
from exgrpo.evaluation import evaluate_policy
from exgrpo.evaluation.generation import batches_of
from exgrpo.rewards import numeric_reward

SYMBOLS = ["<pad>", "<eos>", "<unk>", *"0123456789+=UA"]
PAD, EOS = 0, 1


@pytest.fixture(scope="module")
def tokenizer():
    inner = Tokenizer(models.WordLevel({s: i for i, s in enumerate(SYMBOLS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}U{{ m.content }}{% endfor %}{% if add_generation_prompt %}A{% endif %}"
    return fast


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SYMBOLS), hidden_size=48, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def questions(count):
    rng = random.Random(0)
    return [
        {"prompt": f"{rng.randrange(200)}+{rng.randrange(10)}=", "answer": str(rng.randrange(10))} for _ in range(count)
    ]


def test_the_numbers_are_those_of_the_samples(model, tokenizer):
    seen = []

    def reward(prompts, completions, completion_ids, answer, **kwargs):
        values = [None if i % 7 == 0 else float(len(ids) % 2) for i, ids in enumerate(completion_ids)]
        seen.append((prompts, completions, completion_ids, answer, values))
        return values

    rows = questions(12)
    result = evaluate_policy(model, tokenizer, rows, reward, num_samples=6, max_new_tokens=5, batch_size=10)
    (prompts, completions, ids, answers, values), (greedy_prompts, _, greedy_ids, _, greedy_values) = seen
    assert prompts == [row["prompt"] for row in rows for _ in range(6)]
    assert answers == [row["answer"] for row in rows for _ in range(6)]
    assert greedy_prompts == [row["prompt"] for row in rows]
    assert completions == tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert all(len(row) <= 5 and EOS not in row[:-1] for row in ids)
    assert all(row[-1] == EOS or len(row) == 5 for row in ids)
    grid = np.array([np.nan if v is None else v for v in values]).reshape(12, 6)
    assert result.pass_at_1 == pytest.approx(np.mean(np.nanmean(grid, axis=1)))
    assert result.pass_at_1 == pytest.approx(result.pass_at_k[1])
    assert list(result.pass_at_k) == [1, 2, 4, 6]
    assert list(result.pass_at_k.values()) == sorted(result.pass_at_k.values())
    assert result.accuracies == pytest.approx(np.nanmean(grid, axis=1))
    assert result.unscorable == values.count(None)
    assert result.greedy_accuracy == pytest.approx(np.mean([v for v in greedy_values if v is not None]))
    assert result.mean_length == pytest.approx(np.mean([len(row) for row in ids]))
    assert result.tokens == sum(map(len, ids)) + sum(map(len, greedy_ids))
    assert result.cut_share == pytest.approx(np.mean([row[-1] != EOS for row in ids]))
    assert (result.questions, result.num_samples, result.valid_share) == (12, 6, None)
    assert result.as_row()["pass@4"] == result.pass_at_k[4]
    right = [{completions[i] for i in range(6 * q, 6 * q + 6) if values[i] == 1.0} for q in range(12)]
    assert result.distinct_right == pytest.approx(np.mean([len(texts) for texts in right]))
    assert result.distinct_right < np.nansum(grid == 1.0) / 12, "some question has a right text twice"


def test_nothing_is_left_changed(model, tokenizer):
    model.train()
    model.model.layers[0].eval()
    model.generation_config.top_k = 3
    flags = [module.training for module in model.modules()]
    config = copy.deepcopy(model.generation_config.to_dict())
    weights = copy.deepcopy(model.state_dict())
    torch.manual_seed(5), np.random.seed(5), random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    evaluate_policy(model, tokenizer, questions(4), numeric_reward, num_samples=2, max_new_tokens=4)

    def broken(**kwargs):
        raise RuntimeError("verifier")

    with pytest.raises(RuntimeError, match="verifier"):
        evaluate_policy(model, tokenizer, questions(4), broken, num_samples=2, max_new_tokens=4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    assert [module.training for module in model.modules()] == flags
    assert model.generation_config.to_dict() == config
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_seed_decides(model, tokenizer):
    def run(seed, noise):
        torch.manual_seed(noise)
        return evaluate_policy(model, tokenizer, questions(16), numeric_reward, max_new_tokens=6, seed=seed)

    assert run(1, noise=1) == run(1, noise=2)
    assert run(1, noise=1).mean_length != run(2, noise=1).mean_length


def test_sampling_is_from_the_whole_distribution(model, tokenizer):
    model.generation_config.update(top_k=1, top_p=0.1, repetition_penalty=2.0, temperature=0.01)
    texts = []

    def reward(completions, **kwargs):
        texts.append(completions)
        return [1.0] * len(completions)

    evaluate_policy(model, tokenizer, questions(1), reward, num_samples=400, max_new_tokens=1, greedy=False)
    ids = tokenizer("".join(texts[0]))["input_ids"]
    with torch.no_grad():
        expected = model(**tokenizer(questions(1)[0]["prompt"], return_tensors="pt")).logits[0, -1].softmax(-1)
    frequencies = torch.bincount(torch.tensor(ids), minlength=len(SYMBOLS)) / 400
    assert torch.allclose(frequencies[3:], expected[3:], atol=0.07)


@pytest.mark.slow
def test_nothing_of_the_models_generation_configuration_changes_what_is_sampled(model, tokenizer):
    def distinct():
        one = lambda completions, **_: [1.0] * len(completions)  # noqa: E731
        return evaluate_policy(model, tokenizer, questions(4), one, num_samples=16, max_new_tokens=6).distinct_right

    plain = distinct()
    config = model.generation_config
    for name, value in {
        "min_p": 0.99, "typical_p": 0.001, "epsilon_cutoff": 0.9, "top_k": 1, "suppress_tokens": [3, 4],
        "no_repeat_ngram_size": 1, "bad_words_ids": [[5]], "min_new_tokens": 6, "num_return_sequences": 2, "num_beams": 2,
        "stop_strings": "1",
    }.items():  # fmt: skip
        model.generation_config = copy.deepcopy(config)
        own = model.generation_config
        setattr(own, name, value)
        assert distinct() == plain, name
        assert model.generation_config is own


def test_the_end_tokens_are_those_of_the_model_and_the_tokenizer(model, tokenizer):
    model.generation_config.eos_token_id = [5, 6]
    seen = []

    def reward(completion_ids, **kwargs):
        seen.extend(completion_ids)
        return [1.0] * len(completion_ids)

    evaluate_policy(model, tokenizer, questions(8), reward, num_samples=16, max_new_tokens=6)
    assert {ids[-1] for ids in seen if len(ids) < 6} == {EOS, 5, 6}
    assert not any({EOS, 5, 6} & {*ids[:-1]} for ids in seen)


def test_it_says_over_how_many_questions_each_k_is(model, tokenizer, caplog):
    def reward(completions, **kwargs):
        return [None if i in (0, 4, 5, 6) else 1.0 for i in range(len(completions))]

    result = evaluate_policy(model, tokenizer, questions(3), reward, num_samples=4, max_new_tokens=2, greedy=False)
    assert result.questions_at_k == {1: 3, 2: 2, 4: 1}
    assert "pass@1 over 3, pass@2 over 2, pass@4 over 1 of 3" in caplog.text
    row = result.as_row()
    assert (row["questions@2"], row["questions@4"], "questions@1" in row) == (2, 1, False)


def test_verifiers_are_told_that_the_chat_template_began_the_thinking(model, tokenizer):
    rows = [{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}]

    def reward(prompts, completions, answer, **kwargs):
        written = [[{"role": "assistant", "content": "2"}] for _ in completions]
        return numeric_reward(prompts=prompts, completions=written, answer=answer)

    plain, thinking = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    thinking.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
    thinking.add_tokens(["<think>"])
    model.resize_token_embeddings(len(thinking))
    results = [evaluate_policy(model, t, rows, reward, num_samples=2, max_new_tokens=2) for t in (plain, thinking)]
    assert [result.pass_at_1 for result in results] == [1.0, 0.0]
    assert [result.greedy_accuracy for result in results] == [1.0, 0.0]


def test_greedy_does_not_depend_on_padding_or_batch(model, tokenizer):
    rows = [{"prompt": "1" * length + "+2="} for length in (1, 9, 4, 4, 2, 7)]

    def greedy(batch_size):
        seen = []

        def reward(completion_ids, **kwargs):
            seen.append(completion_ids)
            return [1.0] * len(completion_ids)

        evaluate_policy(model, tokenizer, rows, reward, num_samples=1, max_new_tokens=6, batch_size=batch_size)
        return seen[1]

    assert greedy(1) == greedy(4) == greedy(100)


def test_conversational_prompts(model, tokenizer):
    rows = [
        {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"},
        {"prompt": [{"role": "user", "content": "3="}], "answer": "3"},
    ]

    def reward(prompts, completions, answer, **kwargs):
        assert prompts[0] == rows[0]["prompt"]
        assert all(
            len(c) == 1 and c[0]["role"] == "assistant" and isinstance(c[0]["content"], str) for c in completions
        )
        return [1.0] * len(prompts)

    assert evaluate_policy(model, tokenizer, rows, reward, num_samples=2, max_new_tokens=3).pass_at_1 == 1.0


def test_valid_share_is_over_right_samples_only(model, tokenizer):
    asked = []

    def is_valid(prompt, completion):
        asked.append((prompt, completion))
        return len(asked) % 2 == 0

    def reward(completions, **kwargs):
        return [0.5 if i % 4 else 0.9 for i in range(len(completions))]

    rows = questions(4)
    options = {"num_samples": 4, "max_new_tokens": 3, "greedy": False, "is_valid": is_valid}
    result = evaluate_policy(model, tokenizer, rows, reward, **options)
    assert [prompt for prompt, _ in asked] == [row["prompt"] for row in rows]
    assert (result.pass_at_1, result.valid_share, result.greedy_accuracy) == (0.25, 0.5, None)
    assert result.distinct_right == 0.5  # one right sample a question, of which every second is valid
    assert evaluate_policy(model, tokenizer, rows, reward, correctness_threshold=0.9, **options).valid_share is None


def test_refusals(model, tokenizer):
    for options in ({"num_samples": 0}, {"temperature": 0.0}, {"max_new_tokens": -1}, {"batch_size": 1.5}):
        with pytest.raises(ConfigurationError):
            evaluate_policy(model, tokenizer, questions(2), numeric_reward, **options)
    for rows in ([], [{"question": "1"}]):
        with pytest.raises(DatasetError):
            evaluate_policy(model, tokenizer, rows, numeric_reward)
    with pytest.raises(DatasetError, match="could be scored"):
        evaluate_policy(
            model, tokenizer, questions(2), lambda completions, **_: [None] * len(completions), max_new_tokens=2
        )
    with pytest.raises(ConfigurationError, match="returned 1 values"):
        evaluate_policy(model, tokenizer, questions(2), lambda **_: [1.0], max_new_tokens=2)


def test_batches_keep_equal_lengths_together():
    lengths = [3] * 10 + [4] * 10 + [9, 8]
    batches = batches_of(lengths, 8)
    assert sorted(index for batch in batches for index in batch) == list(range(22))
    assert all(len(batch) <= 8 for batch in batches)
    assert [sorted({lengths[i] for i in batch}) for batch in batches] == [[3], [3], [4], [4], [8, 9]]
    assert all(lengths[batch[-1]] == max(lengths[i] for i in batch) for batch in batches)


@pytest.mark.slow
def test_a_tiny_policy_is_evaluated_in_seconds(model, tokenizer):
    start = time.process_time()
    evaluate_policy(model, tokenizer, questions(512), numeric_reward, max_new_tokens=12, batch_size=2048)
    assert time.process_time() - start < 30  # about one on an idle core
