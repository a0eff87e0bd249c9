"""What cannot work is refused by name, before a model is loaded, with what to set instead."""

import inspect
import re
from dataclasses import fields

import numpy as np
import pytest
import torch
from datasets import Dataset

from exgrpo.errors import CheckpointError, ConfigurationError, DatasetError
from exgrpo.runtime.checkpoint import how_to_take_weights
from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer
from exgrpo.trl.checks import report_sharding
from tests.support import harness as h
from trl import GRPOConfig, GRPOTrainer

NO_MODEL = "/nowhere/there-is-no-model"  # would fail to load: a refusal must come first


def build(tmp_path, dataset=None, reward=h.right_reward, args=None, options=None, **more):
    args = args if args is not None else h.config(tmp_path, **(options or {}))
    return ExGRPOTrainer(
        model=NO_MODEL, reward_funcs=reward, args=args, train_dataset=dataset or h.questions(16), **more
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss_type": "drgrpo"}, "There is no loss_type 'drgrpo'. TRL has: grpo, bnpo, dr_grpo"),
        ({"loss_type": "drgrpo", "preset": "on-policy"}, "There is no loss_type 'drgrpo'"),
        ({"loss_type": "bnpo"}, "Set loss_type to one of dr_grpo, grpo, dapo, cispo"),
        ({"loss_type": "bnpo"}, "depend on how a batch is cut"),
        ({"loss_type": "sapo"}, "its gate is made of the ratio"),
        ({"loss_type": "vespo"}, "its weight of a completion"),
        ({"loss_type": "luspo"}, "it lets a completion weigh"),
        ({"scale_rewards": "batch"}, "Set scale_rewards='none'"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
        ({"top_entropy_quantile": 0.2}, "top_entropy_quantile=1.0"),
        ({"mask_truncated_completions": True}, "or store_truncated=False"),
        (
            {"mask_truncated_completions": True, "store_truncated": False, "preset": "rescue"},
            "mask_truncated_completions=False",
        ),
        (
            {"preset": "exgrop"},
            "There is no preset 'exgrop'. Did you mean 'exgrpo'? Presets: exgrpo, exgrpo-paper-text, on-policy",
        ),
        ({"replay_share": 1.5}, "replay_share must be a number in [0, 1], but is 1.5. The default is 0.5"),
        ({"sigma": 0.0}, "sigma must be a number in (0"),
        ({"correction": "clipped"}, "one of 'shaped', 'clip', 'truncated', 'none'"),
        ({"max_generated_tokens": 0}, "max_generated_tokens must be at least 1"),
        ({"generation_kwargs": {"num_return_sequences": 4}}, "Set num_generations"),
        ({"generation_kwargs": {"temperature": 0.5}, "preset": "on-policy"}, "Set temperature=0.5 instead"),
        ({"generation_kwargs": '{"top_k": 5}'}, "generation_kwargs has top_k=5, but top_k=0"),
        ({"generation_kwargs": {"max_new_tokens": 99}}, "but max_completion_length=12"),
        ({"generation_kwargs": {"stop_strings": ["1"]}}, "gets no tokenizer"),
        ({"generation_kwargs": {"do_sample": False}}, "must be sampled"),
    ],
)
def test_options(tmp_path, options, says):
    with pytest.raises(ConfigurationError) as error:
        h.config(tmp_path, **options)
    assert says in str(error.value)


def test_what_generation_may_be_told(tmp_path):
    h.config(
        tmp_path,
        temperature=0.5,
        generation_kwargs={"temperature": 0.5, "num_return_sequences": 1, "no_repeat_ngram_size": 9},
    )


def test_what_is_refused_with_replay_works_without(tmp_path):
    h.config(
        tmp_path, preset="on-policy", loss_type="bnpo", importance_sampling_level="sequence", scale_rewards="batch"
    )


def test_batch_arithmetic_names_the_nearest_values(tmp_path):
    """[FAULTS 31]"""
    with pytest.raises(ConfigurationError) as error:
        h.config(tmp_path, per_device_train_batch_size=6, num_generations=4, gradient_accumulation_steps=3)
    message = str(error.value)
    assert "per_device_train_batch_size (6) x processes (1) x steps_per_generation (3) = 18 completions" in message
    assert "a product of 16 or 20, or num_generations to one of [2, 3, 6, 9, 18]" in message


@pytest.mark.parametrize("preset", ["exgrpo", "on-policy", "positive-weight"])
def test_fewer_questions_than_a_generation_takes(tmp_path, preset):
    """The host would train 0 steps."""
    with pytest.raises(DatasetError, match="has 7 rows, but one generation takes 8 questions"):
        build(tmp_path, h.questions(7), options={"preset": preset})


@pytest.mark.parametrize(
    ("argument", "value"),
    [("tools", [len]), ("rollout_func", lambda prompts, trainer: {}), ("environment_factory", object)],
)
def test_arguments(tmp_path, argument, value):
    with pytest.raises(ConfigurationError, match=f"{argument} cannot be combined with replay: .*preset='on-policy'"):
        build(tmp_path, **{argument: value})


def test_streams_and_images(tmp_path):
    with pytest.raises(ConfigurationError, match="replay needs a dataset with a length"):
        build(tmp_path, h.questions(16).to_iterable_dataset())
    with pytest.raises(ConfigurationError, match="has a column 'image'"):
        build(tmp_path, h.questions(16).add_column("image", [0] * 16))


def test_columns(tmp_path):
    """[FAULTS 32]"""
    with pytest.raises(DatasetError, match=r"needs a column 'prompt', but has \['problem', 'right'\].*rename_column"):
        build(tmp_path, h.questions(16).rename_column("prompt", "problem"))
    with pytest.raises(
        DatasetError, match=r"'right_reward' needs a column 'right', but train_dataset has \['prompt', 'solution'\]"
    ):
        build(tmp_path, h.questions(16).rename_column("right", "solution"))


def test_a_plain_grpo_config(tmp_path):
    with pytest.raises(ConfigurationError, match="needs args of type ExGRPOConfig, not GRPOConfig"):
        build(tmp_path, args=h.config(tmp_path, GRPOConfig))


def test_the_function_that_decides(tmp_path):
    from trl.rewards import think_format_reward

    from exgrpo.rewards import numeric_reward

    for functions, options, says in (
        (h.right_reward, {"correctness_function": "other"}, r"'other' is not one of .*\['right_reward'\]"),
        (
            [h.right_reward, h.right_reward],
            {"correctness_function": "right_reward"},
            "is the name of 2 reward functions. Give each a name of its own",
        ),
        (numeric_reward, {"correctness_threshold": 1.0}, "'numeric_reward' gives at most 1.*threshold below 1"),
        (think_format_reward, {"correctness_threshold": 1.5, "preset": "on-policy"}, "gives at most 1"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            build(tmp_path, h.questions(16).rename_column("right", "answer").add_column("right", [""] * 16),
                  functions, options=options)  # fmt: skip


@pytest.mark.slow
def test_what_is_said_of_reward_functions_at_start(tmp_path, caplog):
    trainer = h.trainer(
        h.config(tmp_path, correctness_threshold=1.0, max_steps=1, per_device_train_batch_size=8),
        h.questions(8),
        reward=[h.right_reward, h.right_reward],
        script=lambda generation, question, member: f"a{member}$",
    )
    assert "Several reward functions are called 'right_reward': their figures are logged as one" in caplog.text
    trainer.train()
    assert caplog.text.count("Completions with a reward of 1 count as wrong: that is correctness_threshold") == 1


def test_a_trainer_that_does_not_replay(tmp_path):
    for preset in ("exgrpo", "positive-weight"):
        with pytest.raises(ConfigurationError, match=r"Replace GRPOTrainer\(...\) by exgrpo.trl.ExGRPOTrainer"):
            h.trainer(h.config(tmp_path, preset=preset), h.questions(16), cls=GRPOTrainer)
    h.trainer(h.config(tmp_path, preset="on-policy"), h.questions(16), cls=GRPOTrainer)


@pytest.mark.parametrize("preset", ["exgrpo", "on-policy"])
def test_nothing_to_train(tmp_path, preset):
    from peft import LoraConfig, PeftModel, get_peft_model

    get_peft_model(h.tiny_model(), LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    for trainable in (False, True):
        model = PeftModel.from_pretrained(h.tiny_model(), tmp_path / "adapter", is_trainable=trainable)
        if trainable:
            h.trainer(h.config(tmp_path, preset=preset), h.questions(16), model=model)
            continue
        with pytest.raises(ConfigurationError, match=r"no parameter of the model is trainable .*is_trainable=True"):
            h.trainer(h.config(tmp_path, preset=preset), h.questions(16), model=model)


@pytest.mark.parametrize(
    ("learned", "length", "completion", "error", "says"),
    [
        (True, 128, 4, DatasetError, "prompt of row 2 .* has 128 tokens, but the model has 128 positions .*1 prompts leave"),
        (False, 300, 4, DatasetError, "has 300 tokens, but the model has 256 positions"),
        (True, 120, 9, ConfigurationError, "max_completion_length=9 that is more than the 128 .*to at most 8, or leave"),
        (True, 120, 8, None, ""),
        (False, 250, 9, None, "Beyond the context length of the model: .*to at most 6"),
        (False, 247, 9, None, ""),
    ],
)  # fmt: skip
def test_prompts_beyond_the_models_positions(tmp_path, caplog, learned, length, completion, error, says):
    rows = h.questions(16).to_list()
    rows[2]["prompt"] = "q" * length
    given = h.config(tmp_path, max_completion_length=completion), Dataset.from_list(rows), h.tiny_model(0, learned)
    if error is not None:
        with pytest.raises(error, match=says):
            h.trainer(*given)
        return
    h.trainer(*given)
    assert re.search(says or "^(?!.*Beyond)", caplog.text)


def test_a_prompt_beyond_the_models_positions_without_replay(tmp_path):
    dataset = Dataset.from_list([{"prompt": "q" * 128, "right": ""}] * 8)
    trainer = h.trainer(h.config(tmp_path, preset="on-policy"), dataset, h.tiny_model(0, True))
    with pytest.raises(DatasetError, match="a prompt has 128 tokens, but the model has 128 positions"):
        trainer.train()


ANSWERS = {
    "dictionary": lambda n: dict.fromkeys(range(n), 1.0), "nothing": lambda n: None, "number": lambda n: 1.0,
    "text": lambda n: "1" * n, "texts": lambda n: ["1.0"] * n, "matrix": lambda n: torch.ones(n, 2),
    "column": lambda n: np.ones((n, 1)), "scalar": lambda n: np.array(1.0), "short": lambda n: [1.0] * (n - 1),
    "long": lambda n: [1.0] * (n + 1), "lists": lambda n: [[1.0]] * n, "complex": lambda n: [1j] * n,
    "huge": lambda n: [10**400] * n,
}  # fmt: skip
RIGHT_ANSWERS = {
    "tensor": lambda n: torch.ones(n), "array": lambda n: np.ones(n, np.float16), "integers": lambda n: [1] * n,
    "tuple": lambda n: (1.0,) * n, "scalars": lambda n: [np.float32(1), torch.tensor(1.0), True, None] * (n // 4),
    "generator": lambda n: (1.0 for _ in range(n)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ANSWERS, *RIGHT_ANSWERS])
def test_what_a_reward_function_may_return(name):
    from exgrpo.trl.reward_answers import rewards_in

    if name in RIGHT_ANSWERS:
        assert len(rewards_in("scores", RIGHT_ANSWERS[name](8), 8)) == 8
        return
    with pytest.raises(ValueError, match="'scores' must return a list with one value for each of the 8 completions"):
        rewards_in("scores", ANSWERS[name](8), 8)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "asynchronous"), [("exgrpo", False), ("exgrpo", True), ("on-policy", False)])
def test_a_reward_function_that_returns_something_else(tmp_path, preset, asynchronous):
    """Nothing is stored, and no question retires, because of an answer that cannot be read."""

    def scores(prompts, completions, **columns):
        return dict.fromkeys(range(len(prompts)), 1.0)

    async def slow_scores(prompts, completions, **columns):
        return scores(prompts, completions)

    trainer = h.trainer(
        h.config(tmp_path, preset=preset, max_steps=1, per_device_train_batch_size=8), h.questions(8),
        reward=slow_scores if asynchronous else scores, script=lambda generation, question, member: f"a{member}$",
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"scores' must return a list .* each of the 8 .*but returned dict \{0: 1"):
        trainer.train()
    if trainer.planner is not None:
        assert (len(trainer.planner.buffer), trainer.planner.buffer.num_retired) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["exgrpo", "on-policy"])
def test_no_token_to_train_on(tmp_path, caplog, preset):
    options = {} if preset == "on-policy" else {"store_truncated": False}
    trainer = h.trainer(
        h.config(tmp_path, preset=preset, mask_truncated_completions=True, max_steps=4, **options), h.questions(16),
        script=lambda generation, question, member: f"a{member}" + "$" * (generation == 2),
    )  # fmt: skip
    trainer.train()
    says = "every completion of the generation was cut at max_completion_length=12.*Set max_completion_length higher"
    steps = [
        re.match(r"No token to train on at step (\d)", r.message)[1]
        for r in caplog.records
        if re.search(says, r.message)
    ]
    assert steps == ["0", "3"]


def test_dropout(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=8, n_layer=1, n_head=1, pad_token_id=0, eos_token_id=2))
    h.trainer(h.config(tmp_path), h.questions(16), model=model)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_embd=8, n_layer=1, n_head=1, pad_token_id=0, eos_token_id=2))
    with pytest.raises(ConfigurationError, match=r"active dropout .*Set disable_dropout=True"):
        h.trainer(h.config(tmp_path, disable_dropout=False), h.questions(16), model=model)
    model = h.tiny_model()
    model.model.layers[1].self_attn.attention_dropout = 0.1
    with pytest.raises(
        ConfigurationError, match=r"layers\.1\.self_attn has attention_dropout=0\.1, which disable_dropout"
    ):
        h.trainer(h.config(tmp_path), h.questions(16), model=model)


def test_processes_with_other_questions():
    from exgrpo.runtime.checks import check_same_questions

    check_same_questions(["a", "a"])
    with pytest.raises(DatasetError, match="the processes hold different train_datasets"):
        check_same_questions(["a", "b"])


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        (True, "holds no complete checkpoint. Start without it"),
        ("nowhere/checkpoint-3", "the checkpoint nowhere/checkpoint-3 does not exist"),
    ],
)
def test_resuming_from_nothing(tmp_path, resume, message):
    trainer = h.trainer(h.config(tmp_path), h.questions(16))
    with pytest.raises(CheckpointError, match=message):
        trainer.train(resume_from_checkpoint=resume)


def test_no_body_of_the_host_is_copied():
    """Every override of a method of the host calls it."""
    ours = [cls for cls in ExGRPOTrainer.mro() if cls.__module__.startswith("exgrpo.")]
    assert len(ours) == 2
    for name, member in (item for cls in ours for item in vars(cls).items()):
        if inspect.isfunction(member) and hasattr(GRPOTrainer, name):
            assert "super()." in inspect.getsource(member), name


def test_fsdp_that_is_not_there_is_said(tmp_path, caplog):
    """Accelerate leaves CPUs out and trains on, unsharded, in silence. (The host refuses fsdp with one process.)"""
    trainer = h.trainer(h.config(tmp_path), h.questions(16))
    report_sharding(trainer)
    assert not caplog.records
    trainer.args.fsdp = True
    report_sharding(trainer)
    assert "fsdp=True is set, but the model is not sharded" in caplog.text


def test_how_to_take_weights_names_what_merges_them(tmp_path):
    whole, parts, zero = (tmp_path / name for name in ("whole", "parts", "zero"))
    (parts / "pytorch_model_fsdp_0").mkdir(parents=True)
    for path in (whole / "model.safetensors", parts / "exgrpo-rank-0.safetensors", zero / "zero_to_fp32.py"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert how_to_take_weights(str(whole)) == f"from the checkpoint's weights (model={str(whole)!r})"
    assert f"`accelerate merge-weights {parts}/pytorch_model_fsdp_0 FOLDER`" in how_to_take_weights(str(parts))
    assert f"`python {zero}/zero_to_fp32.py {zero} FOLDER`" in how_to_take_weights(str(zero))


def test_duplicates_and_the_deciding_function_are_reported(tmp_path, caplog):
    rows = h.questions(16).to_list()

    def second(prompts, completions, **kwargs):
        return [0.0] * len(prompts)

    h.trainer(h.config(tmp_path), Dataset.from_list([*rows, *rows[:3]]), reward=[h.right_reward, second])
    assert "3 of 19 rows of train_dataset repeat another" in caplog.text
    assert "'right_reward', is above 0.5" in caplog.text


def test_defaults_are_the_methods():
    args = ExGRPOConfig("out", use_cpu=True, bf16=False, report_to=[])
    assert (args.loss_type, args.scale_rewards, args.beta, args.disable_dropout) == ("dr_grpo", "none", 0.0, True)
    assert args.skip_rows is None
    assert (args.mixing, args.replay_share, args.sigma, args.start_pass_at_1) == ("share", 0.5, 0.125, 0.35)
    assert (args.correction, args.shaping_beta, args.epsilon) == ("shaped", 0.1, 0.2)


@pytest.mark.parametrize("preset", ["exgrpo", "on-policy"])
def test_trls_defaults_are_kept_where_asked_for(preset):
    common = dict(output_dir="out", use_cpu=True, bf16=False, report_to=[])
    args = ExGRPOConfig(preset=preset, keep_trl_defaults=True, **common)
    host = GRPOConfig(**common)
    assert args.skip_rows is False
    for f in fields(GRPOConfig):
        assert getattr(args, f.name) == getattr(host, f.name), f.name
    args = ExGRPOConfig(preset=preset, keep_trl_defaults=True, loss_type="dr_grpo", skip_rows=True, **common)
    assert (args.loss_type, args.scale_rewards, args.skip_rows) == ("dr_grpo", host.scale_rewards, True)
