"""What verifiers are told in training, and what they tell: thoughts that the template began, generations without an answer."""

import logging

import pytest
from datasets import Dataset

from exgrpo.errors import ConfigurationError
from exgrpo.rewards import math_reward, numeric_reward, strict_math_reward
from exgrpo.rewards.completion import looks_for
from exgrpo.rewards.math.reward import async_math_reward
from tests.support.harness import config, tiny_model, tiny_tokenizer, trainer

THOUGHT = ["<think>", "</think>"]


def thinking_tokenizer(begins: bool):
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.add_tokens(THOUGHT)
    if begins:
        tokenizer.chat_template = tokenizer.chat_template.replace("}a({%", "}a(<think>{%")
    return tokenizer


def chat_questions(n: int) -> Dataset:
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"what is {i}?"}], "answer": str(i)} for i in range(n)]
    )


def asked(prompt: str) -> str:
    return prompt.partition("is ")[2].partition("?")[0].replace(" ", "")


def run(tmp_path, reward, begins=True, dataset=None, script=None, **options):
    tokenizer = thinking_tokenizer(begins)
    model = tiny_model()
    model.resize_token_embeddings(len(tokenizer))
    made = trainer(
        config(tmp_path, max_steps=1, **options), dataset or chat_questions(8), model=model, tokenizer=tokenizer,
        reward=reward, script=script,
    )  # fmt: skip
    made.train()
    return made


def sync_user(prompts, completions, answer):
    """A user's function without `**kwargs` cannot be called with more than it takes; here it asks for its columns only."""
    return numeric_reward(prompts, completions, answer)


def takes_nothing_more(prompts, completions, answer, completion_ids, trainer_state, log_extra, log_metric):
    return sync_user(prompts, completions, answer)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["exgrpo", "on-policy"])
def test_a_thought_that_the_template_began_is_no_answer(tmp_path, preset):
    def script(generation, prompt, member):
        right = f"the answer is {asked(prompt)}"
        return [f"{right}$", f"{right}", f"hm</think>{right}$", f"{right}</think>no idea$"][member]

    rewards = [math_reward, strict_math_reward, async_math_reward, numeric_reward, takes_nothing_more]
    options = dict(preset=preset, max_completion_length=32, correctness_function="numeric_reward")
    for begins, share in ((True, 0.25), (False, 0.75)):
        (logged, *_) = run(tmp_path / str(begins), rewards, begins, script=script, **options).state.log_history
        assert {f.__name__: logged[f"rewards/{f.__name__}/mean"] for f in rewards} == {
            f.__name__: share for f in rewards
        }


def test_evaluation_is_told_too(tmp_path):
    seen = []

    def reward(prompts, completions, answer, **kwargs):
        said = [[{"role": "assistant", "content": str(a)}] for a in answer]
        seen.append((kwargs["trainer_state"].global_step, numeric_reward(prompts, said, answer)))
        return seen[-1][1]

    made = run(tmp_path, reward, True, script=lambda *_: "a$")
    seen.clear()
    made.evaluate(chat_questions(2))
    assert seen
    assert {value for _, values in seen for value in values} == {0.0}


def test_a_generation_without_any_answer_is_said_at_once(tmp_path, caplog):
    def script(generation, prompt, member):
        if generation == 1 and member == 0:
            return "5$"
        return "i do not know what you mean$" if generation != 3 else "some more words"

    dataset = Dataset.from_list([{"prompt": f"q{i}=", "answer": "5"} for i in range(8)])
    with caplog.at_level(logging.WARNING):
        made = trainer(
            config(tmp_path, max_steps=4, max_completion_length=40), dataset, reward=numeric_reward, script=script
        )
        made.train()
    said = [record.getMessage() for record in caplog.records if "have an answer where" in record.getMessage()]
    assert len(said) == 2, "again only after some had an answer"
    assert said[0].startswith(
        "0 of 32 completions of the generation at step 0 have an answer where numeric_reward looks: after the thinking: in "
    )
    assert "0 of them were cut" in said[0]
    assert "'i do not know what you mean'" in said[0]
    assert "at step 2" in said[1]
    shares = [entry["fresh/unanswered"] for entry in made.state.log_history if "fresh/unanswered" in entry]
    assert shares == pytest.approx([1.0, 0.75, 1.0, 1.0])


@pytest.mark.slow
def test_stored_completions_are_not_counted_and_other_functions_are_not_asked(tmp_path, caplog):
    def script(generation, prompt, member):
        return "5$" if generation == 0 and member == 0 else "i do not know what you mean$"

    dataset = Dataset.from_list([{"prompt": f"q{i}=", "answer": "5"} for i in range(8)])
    options = dict(max_steps=3, max_completion_length=40, start_pass_at_1=0.0, replay_share=0.5)

    def silent(prompts, completions, answer, **kwargs):
        return numeric_reward(prompts, completions, answer)

    made = trainer(config(tmp_path / "a", **options), dataset, reward=[silent, numeric_reward], script=script)
    made.train()
    logged = [entry for entry in made.state.log_history if "fresh/unanswered" in entry]
    assert logged[-1]["replay/injected"] > 0
    assert [entry["fresh/unanswered"] for entry in logged] == pytest.approx([0.75, 1.0, 1.0])
    assert sum("0 of 28 completions" in record.getMessage() for record in caplog.records) == 1
    caplog.clear()
    made = trainer(config(tmp_path / "b", **options), dataset, reward=silent, script=script)
    made.train()
    assert not any("fresh/unanswered" in entry for entry in made.state.log_history)
    assert not any("have an answer where" in record.getMessage() for record in caplog.records)


def test_a_users_function_may_say_where_it_looks(tmp_path, caplog):
    @looks_for("on the last line", lambda text: "ok" in text)
    def mine(prompts, completions, **kwargs):
        return [0.0] * len(completions)

    made = trainer(
        config(tmp_path, max_steps=1), Dataset.from_list([{"prompt": "q"}] * 8), reward=mine, script=lambda *_: "a$"
    )
    made.train()
    assert "where mine looks: on the last line" in caplog.text


# What the model's own generation configuration adds -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [("min_p", 0.99, {"min_p": 0.0}), ("typical_p", 0.5, {"generation_kwargs": {"typical_p": 1.0}}),
     ("suppress_tokens", [3], None), ("no_repeat_ngram_size", 2, {"generation_kwargs": {"no_repeat_ngram_size": 0}})],
)  # fmt: skip
def test_sampling_that_the_model_configuration_changes_is_refused_with_replay(tmp_path, caplog, name, value, neutral):
    dataset = Dataset.from_list([{"prompt": f"q{i}=", "answer": "5"} for i in range(8)])

    def made(**options):
        model = tiny_model()
        setattr(model.generation_config, name, value)
        return trainer(config(tmp_path, **options), dataset, model=model, reward=numeric_reward)

    with pytest.raises(ConfigurationError, match=f"generation_config holds {name}={value!r}".replace("[", r"\[")):
        made()
    made(preset="on-policy")
    assert f"holds {name}" in caplog.text
    if neutral is not None:
        caplog.clear()
        made(**neutral)
        assert f"holds {name}" not in caplog.text


def test_what_the_host_overrides_or_changes_nothing_is_taken(tmp_path, caplog):
    model = tiny_model()
    for name, value in {
        "top_k": 5,
        "top_p": 0.1,
        "repetition_penalty": 2.0,
        "temperature": 0.1,
        "typical_p": 1.0,
    }.items():
        setattr(model.generation_config, name, value)
    dataset = Dataset.from_list([{"prompt": f"q{i}=", "answer": "5"} for i in range(8)])
    trainer(config(tmp_path), dataset, model=model, reward=numeric_reward)
    assert "generation_config" not in caplog.text
