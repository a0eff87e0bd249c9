"""A GRPO loop written by hand with the names of recipe A, the TrajectoryBuffer recipe. Under a minute on one CPU core.

    python examples/trajectory_buffer_loop.py
    python examples/trajectory_buffer_loop.py --replay_probability 0    # without replay: GRPO

Three of ten updates replay: trajectories that are stored, right or wrong, of questions of medium difficulty, with entropies
in the lowest quarter, weighted by what the policy of today gives them over what that of their day gave them. The other
updates generate, and what they generate is stored. The policy is the built-in tiny one, warmed up on chains of arithmetic
(the first run trains it, with TRL, and keeps it on disk). docs/recipe-a.md goes through the names.
"""

import argparse
import random
from dataclasses import replace

import torch
from torch import nn

from exgrpo.recipes import (
    Rollouts,
    SelectiveReplay,
    TrajectoryBuffer,
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
)
from exgrpo.tasks import get_task
from exgrpo.tasks.base import WarmUp
from exgrpo.tasks.tiny_policy import warm_policy

TASK = get_task("chains", lengths=(1, 2, 3), shares=(1, 1, 1))


class Generator:
    """Samples completions, at temperature 1, and scores them."""

    def __init__(self, policy, tokenizer):
        self.policy, self.tokenizer = policy, tokenizer

    @torch.no_grad()
    def __call__(self, questions, k):
        """k completions of each question: `Rollouts`, rewards (B,), entropies (B,)."""
        questions = [question for question in questions for _ in range(k)]
        prompts = self.tokenizer([q.prompt for q in questions])["input_ids"]
        batch = Rollouts.collate(prompts, [[]] * len(prompts), pad_id=self.tokenizer.pad_token_id)
        answer = self.policy.generate(
            batch.prompt_ids, attention_mask=batch.prompt_mask, do_sample=True, top_k=0,
            max_new_tokens=TASK.max_completion_length, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        ids, logits = answer.sequences[:, batch.prompt_ids.shape[1] :], torch.stack(answer.logits, 1)
        ended = ids == self.tokenizer.eos_token_id
        mask = (ended.cumsum(1) - ended.long() == 0).long()  # up to the first end token
        logps = logits.log_softmax(-1).gather(2, ids[:, :, None])[:, :, 0]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        columns = {name: [q.columns[name] for q in questions] for name in questions[0].columns}
        rewards = TASK.reward_function(
            prompts=prompts, completions=texts, answer=[q.answer for q in questions], **columns
        )
        rollouts = replace(batch, completion_ids=ids, mask=mask, behaviour_logps=logps)
        return rollouts, torch.tensor(rewards), compute_entropy(logits, mask)


def remember(buffer, questions, k, rollouts, rewards, entropies):
    """All of a fresh batch goes into the buffer, failures too."""
    for row in range(len(rollouts)):
        own = rollouts.mask[row].bool()
        question = questions[row // k]
        buffer.add(
            {
                "prompt": rollouts.prompt_ids[row][rollouts.prompt_mask[row].bool()],
                "rollout": rollouts.completion_ids[row][own],
                "reward": rewards[row].item(),
                "entropy": entropies[row].item(),
                "problem_type": f"{len(question.columns['trace'])} operations",
                "behaviour_logps": rollouts.behaviour_logps[row][own],
            }
        )


def train(policy, generate, data, options):
    rng = random.Random(options.seed)
    buffer = TrajectoryBuffer(max_size=10_000, difficulty_tiers=5, entropy_percentiles=[25, 50, 75])
    replay = SelectiveReplay(
        strategy="entropy_guided", replay_probability=options.replay_probability, medium_difficulty_range=(0.3, 0.7),
        replay_start_epoch=options.replay_start_epoch, min_stored=1000, seed=options.seed,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(policy.parameters(), options.learning_rate, betas=(0.9, 0.95))
    order, seen, recent, mixed = [], 0, [], []
    for update in range(options.updates):
        batch = replay.batch(buffer, options.questions * options.k, epoch=seen / len(data), group_size=options.k)
        if batch is None:  # a fresh update
            order = order if len(order) >= options.questions else rng.sample(data, len(data))
            questions, order = order[: options.questions], order[options.questions :]
            seen += len(questions)
            rollouts, rewards, entropies = generate(questions, options.k)
            loss = compute_grpo_loss(rollouts.under(policy), rewards)
            remember(buffer, questions, options.k, rollouts, rewards, entropies)
            recent.append(rewards.mean().item())
        else:  # a replay update
            rollouts = Rollouts.collate(batch.prompts, batch.rollouts, batch.behaviour_logps)
            weights = compute_importance_weights(None, policy, rollouts)  # over the policy of each trajectory's own day
            baselines = batch.rates if options.baseline == "rate" else None  # else the mean of the group
            loss = compute_grpo_loss(rollouts, batch.rewards, weights, baselines=baselines)
            outcomes = {question: batch.is_correct[batch.questions == question] for question in batch.questions}
            mixed += [any(right) and not all(right) for right in outcomes.values()]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % 20 == 0:
            print(
                f"update {update + 1:4d}  reward of fresh ones {sum(recent) / len(recent):.2f}  stored {len(buffer):5d}  "
                f"replay updates {replay.replay_updates:3d}  {replay.idle or f'replays {len(batch)}'}"
            )
            recent = []
    if mixed:
        print(f"of {len(mixed)} replayed groups {sum(mixed) / len(mixed):.0%} held right ones and wrong ones")
    return replay.replay_updates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--questions", type=int, default=16, help="questions of an update")
    parser.add_argument("--k", type=int, default=8, help="completions of each")
    parser.add_argument("--data", type=int, default=192, help="questions in all")
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--replay_probability", type=float, default=0.3)
    parser.add_argument("--baseline", choices=("rate", "group"), default="rate", help="of replayed rewards")
    parser.add_argument("--replay_start_epoch", type=float, default=5)
    parser.add_argument("--warm_up", type=int, default=500, help="supervised batches that the policy begins with")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    policy, tokenizer = warm_policy(TASK, options.seed, warm_up=WarmUp(batches=options.warm_up))
    generate = Generator(policy, tokenizer)
    data, held_out = TASK.draw("train", options.data), TASK.draw("eval", 128)
    before = generate(held_out, 4)[1].mean().item()
    replays = train(policy, generate, data, options)
    after = generate(held_out, 4)[1].mean().item()
    print(
        f"held-out reward {before:.3f} before, {after:.3f} after {options.updates} updates, {replays} of them replays"
    )


if __name__ == "__main__":
    main()
