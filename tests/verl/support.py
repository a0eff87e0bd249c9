"""What every test under verl shares: a tiny policy on disk, questions in verl's layout, and the options of a short run."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from tests.support.policies import tiny_model, tiny_tokenizer

PLAIN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
"""A chat template that adds nothing: prompts are those of a run on text."""


def save_policy(folder: Path, seed: int = 0) -> Path:
    """A model and its tokenizer, as verl loads them."""
    tokenizer, model = tiny_tokenizer(), tiny_model(seed)
    tokenizer.chat_template = PLAIN
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_questions(file: Path, n: int = 20) -> Path:
    """n questions `q<i>=`, to which `a<i>`, `b<i>`, ... are right, as `harness.questions` has them under TRL."""
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"q{i}="}],
            "ability": "letters",
            "reward_model": {"style": "rule", "ground_truth": "|".join(f"{c}{i}" for c in "abcdefgh")},
            "extra_info": {"split": "train", "index": i},
        }
        for i in range(n)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(file)
    return file


def letters(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """1 where the completion is one of the right ones, unscorable for `?`, else 0."""
    if "?" in solution_str:
        return {"score": 0.0, "unscorable": 1.0}
    return {"score": float(solution_str in ground_truth.split("|")), "unscorable": 0.0}


def lucky(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """What an untrained policy can get right: question i is, by the first character, in i % 5 of 5 cases."""
    i = int(ground_truth.split("|")[0][1:])
    return float(ord(solution_str[:1] or "a") % 5 < i % 5)


def overrides(folder: Path, **more) -> list[str]:
    """Options on verl's command line: 8 questions a step, 4 completions of each, on the CPU.

    Args:
        folder: of the run; beside it the policy and the questions, which are made where they are missing.
        more: options in place of these, `__` for a dot.
    """
    policy, file = folder.parent / "policy", folder.parent / "questions.parquet"
    if not policy.exists():
        save_policy(policy)
    if not file.exists():
        save_questions(file)
    model, trainer = "actor_rollout_ref", "trainer"
    settings = {
        "trainer.v1.trainer_mode": "exgrpo",
        "data.train_files": str(file), "data.val_files": str(file), "data.train_batch_size": 8, "data.max_prompt_length": 16,
        "data.max_response_length": 12, "data.seed": 7, "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False, "data.val_batch_size": 8,
        f"{model}.model.path": str(policy), f"{model}.model.use_remove_padding": False,
        f"{model}.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "eager",
        f"{model}.actor.optim.lr": 1e-2, f"{model}.actor.ppo_mini_batch_size": 8, f"{model}.actor.strategy": "fsdp2",
        f"{model}.actor.ppo_micro_batch_size_per_gpu": 4, f"{model}.actor.loss_agg_mode": "seq-mean-token-sum-norm",
        f"{model}.actor.loss_scale_factor": 12, f"{model}.actor.use_torch_compile": False,
        f"{model}.actor.fsdp_config.dtype": "float32", f"{model}.actor.fsdp_config.model_dtype": "fp32",
        f"{model}.rollout.name": "tiny", f"{model}.rollout.n": 4, f"{model}.rollout.log_prob_micro_batch_size_per_gpu": 4,
        f"{model}.rollout.tensor_model_parallel_size": 1, f"{model}.rollout.agent.num_workers": 1,
        f"{model}.rollout.calculate_log_probs": True, f"{model}.rollout.n_gpus_per_node": 1,
        "algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False,
        "reward.custom_reward_function.path": "pkg://tests.verl.support", "reward.custom_reward_function.name": "letters",
        "reward.num_workers": 1,
        f"{trainer}.default_local_dir": str(folder), f"{trainer}.logger": '["file"]', f"{trainer}.nnodes": 1,
        f"{trainer}.n_gpus_per_node": 1, f"{trainer}.val_before_train": False, f"{trainer}.save_freq": -1,
        f"{trainer}.test_freq": -1, f"{trainer}.total_training_steps": 4, f"{trainer}.total_epochs": 100,
        f"{trainer}.device": "cpu", f"{trainer}.project_name": folder.name, f"{trainer}.experiment_name": "run",
        "+exgrpo.replay_metrics": "all", "+exgrpo.start_pass_at_1": 0.0,
    }  # fmt: skip
    for name, value in more.items():
        path = name.replace("__", ".")
        known = {key.lstrip("+"): key for key in settings}
        prefix = "+" if path.startswith("exgrpo.") else ""  # what verl's own configuration has not
        settings[known.get(path, prefix + path)] = value
    return [f"{name}={_text(value)}" for name, value in settings.items() if value is not None]


def _text(value) -> str:
    return str(value) if not isinstance(value, bool) else str(value).lower()


def logged(folder: Path) -> list[dict]:
    """The metrics of each step that verl's logger wrote into a file."""
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


PATIENT = {
    "RAY_gcs_server_port_wait_time_s": "900", "RAY_gcs_server_request_timeout_seconds": "900",
    "RAY_worker_register_timeout_seconds": "900", "RAY_health_check_timeout_ms": "900000",
}  # fmt: skip
"""Limits of Ray that a busy machine would break."""


def environment(ranks: int) -> dict[str, str]:
    """What makes verl run on the CPU, in the launched process and in every worker of Ray."""
    root = Path(__file__).parents[2]
    return {
        **os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "VERL_USE_EXTERNAL_MODULES": "tests.verl.cpu",
        "VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "EXGRPO_TEST_RANKS": str(ranks), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore", **PATIENT,
    }  # fmt: skip


def start(folder: Path, ranks: int = 1, **more):
    """Start verl's own entry point with Ray, in a session of its own; what it prints goes to `folder.log`.

    Returns:
        The process, and the file that it prints to.
    """
    options = overrides(
        folder, trainer__n_gpus_per_node=ranks, actor_rollout_ref__rollout__n_gpus_per_node=ranks, **more
    )
    ray = tempfile.mkdtemp(prefix="ray")  # a short path: sockets lie in it
    init = "ray_kwargs.ray_init"
    options += [
        f"{init}.num_cpus=16", f"+{init}.num_gpus={ranks}", f"+{init}.include_dashboard=false", f"+{init}._temp_dir={ray}",
        f"+{init}.object_store_memory=200000000", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"hydra.run.dir={folder.parent / 'hydra'}",
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    log = open(folder.with_suffix(".log"), "a")  # noqa: SIM115 - the process writes to it
    env = environment(ranks) | {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *options]
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder, start_new_session=True), log


def launch(folder: Path, ranks: int = 1, **more) -> int:
    """As `start`, to its end; returns the exit code. A launch that hangs is ended with the test that waits for it."""
    process, log = start(folder, ranks, **more)
    try:
        return process.wait()
    finally:
        log.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
