"""This package's verifiers as verl calls them: through its reward manager, in a thread of its worker's loop."""

import asyncio

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.import_utils import load_extern_object

from exgrpo.rewards import REWARDS
from exgrpo.runtime.provenance import rewards_of
from exgrpo.verl import rewards

MODULE = "pkg://exgrpo.verl.rewards"


class Words:
    """A tokenizer of characters, which can say everything."""

    eos_token, pad_token_id = "\x00", 0

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(int(i)) for i in ids)


def manager(name, thinking=False):
    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": MODULE, "name": name},
                "reward_manager": {
                    "source": "importlib" if thinking else "register", "module": {"path": MODULE},
                    "name": "ThinkingRewardManager" if thinking else "naive",
                },
            }
        }
    )  # fmt: skip
    return load_reward_manager(config, Words())


def ask(made, text, gold, prompt="How much?", **extra):
    ids, question = (torch.tensor([[ord(c) for c in part]]) for part in (text, prompt))
    batch = TensorDict(
        {
            "prompts": question,
            "responses": ids,
            "attention_mask": torch.ones(1, ids.size(1) + question.size(1), dtype=torch.long),
        },
        [1],
    )
    others = {
        "data_source": "x",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": 3, "split": "train", **extra},
    }
    arrays = {name: np.array([value], dtype=object) for name, value in others.items()}
    return made.loop.run_until_complete(made.run_single(DataProto(batch=batch, non_tensor_batch=arrays)))


@pytest.mark.parametrize(
    ("text", "gold", "score", "unscorable"),
    [
        (r"So it is \boxed{\frac{1}{2}}.", "0.5", 1.0, 0.0),
        (r"So it is \boxed{3}.", "0.5", 0.0, 0.0),
        (r"\boxed{x+1+x}", "2x+1", 1.0, 0.0),
        (r"\boxed{3}", "", 0.0, 1.0),
    ],
)
def test_math_through_verl_s_reward_manager(text, gold, score, unscorable):
    answer = ask(manager("math_reward"), text, gold)
    assert answer == {"reward_score": score, "reward_extra_info": {"score": score, "unscorable": unscorable}}


def test_a_hostile_answer_is_stopped_by_the_limits_of_the_pool():
    made = manager("math_reward")
    hostile = r"\boxed{" + "(x+1)^{9999}(x+2)^{9999}" * 20 + "}"
    assert ask(made, hostile, "x^2+y")["reward_score"] == 0.0
    assert ask(made, r"\boxed{x+x}", "2x")["reward_score"] == 1.0  # and those after it are scored


def test_a_thought_that_the_template_began_is_no_answer():
    thought = r"maybe \boxed{4}"
    assert ask(manager("math_reward"), thought, "4")["reward_score"] == 1.0
    begun = manager("math_reward", thinking=True)
    assert ask(begun, thought, "4", prompt="How much?\n<think>\n")["reward_score"] == 0.0
    assert ask(begun, thought + "</think> \\boxed{4}", "4", prompt="How much?\n<think>\n")["reward_score"] == 1.0


@pytest.mark.parametrize("name", REWARDS)
def test_an_adapter_has_the_name_and_version_of_its_verifier(name):
    """So that experience which was scored under TRL is not scored again."""
    function = load_extern_object(MODULE, name)
    described = [rewards_of([one], [one.__name__], [1.0], 0, 0.5) for one in (function, REWARDS[name])]
    assert described[0] == described[1]


def test_other_columns_reach_the_verifier():
    seen = {}

    def verifier(prompts, completions, answer, source, **kwargs):
        seen.update(source=source, others=kwargs)
        return [0.25]

    score = rewards.adapted(verifier)
    found = asyncio.run(score("x", "text", "gold", {"index": 1, "split": "train", "source": "s", "num_turns": 2}))
    assert found == {"score": 0.25, "unscorable": 0.0}
    assert seen == {"source": ["s"], "others": {}}
