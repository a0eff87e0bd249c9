"""The loss through verl's own `ppo_loss`, held against the reference in float64; and how stored rows are marked."""

import dataclasses
import json

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from exgrpo.config import ObjectiveConfig
from exgrpo.verl.loss import PolicyLoss, marked, unmarked
from tests.reference import objective as reference

LENGTHS, PROMPT, VOCABULARY = [3, 5, 1, 4, 5, 2], 2, 40
STORED = torch.tensor([False, True, False, True, False, True])


def material(seed=0):
    """Log-probs of whole sequences with gradient, and the columns of the rows, jagged."""
    rng = torch.Generator().manual_seed(seed)
    rows = len(LENGTHS)
    old = [-torch.rand(n, generator=rng) * 2 for n in LENGTHS]
    now = [o + 0.5 * torch.randn(len(o), generator=rng) for o in old]
    leaf = torch.cat([torch.cat([torch.zeros(PROMPT - 1), own, torch.zeros(1)]) for own in now]).requires_grad_()
    offsets = torch.tensor([0, *torch.cumsum(torch.tensor([n + PROMPT for n in LENGTHS]), 0).tolist()])
    advantages = torch.randn(rows, generator=rng)
    return leaf, torch.nested.nested_tensor_from_jagged(leaf, offsets), now, old, advantages


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def call(objective, mode="seq-mean-token-sum-norm", scale=1.0, rows=None, seed=0):
    leaf, logps, _, old, advantages = material(seed)
    rows = range(len(LENGTHS)) if rows is None else rows
    weights = [marked(torch.full((1, n), scale), STORED[i : i + 1])[0] for i, n in enumerate(LENGTHS)]
    data = TensorDict(
        {
            "prompts": jagged([torch.zeros(PROMPT, dtype=torch.long)] * len(LENGTHS)),
            "responses": jagged([torch.zeros(n, dtype=torch.long) for n in LENGTHS]),
            "response_mask": jagged([torch.full((n,), int(i in rows)) for i, n in enumerate(LENGTHS)]),
            "old_log_probs": jagged(old),
            "advantages": jagged([torch.full((n,), float(a)) for n, a in zip(LENGTHS, advantages, strict=True)]),
            "rollout_is_weights": jagged(weights),
        },
        batch_size=len(LENGTHS),
    )
    for name, value in {"dp_size": 1, "batch_num_tokens": sum(LENGTHS), "global_batch_size": len(LENGTHS)}.items():
        tu.assign_non_tensor_data(data, name, value)
    policy_loss = PolicyLoss(
        loss_mode="exgrpo", objective=json.dumps(dataclasses.asdict(objective)), vocabulary=VOCABULARY
    )
    config = ActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=2, loss_agg_mode=mode, loss_scale_factor=12,
        policy_loss=policy_loss, clip_ratio_c=1e6,
    )  # fmt: skip
    loss, _ = ppo_loss(config, {"log_probs": logps}, data)
    loss.backward()
    return loss.detach(), leaf.grad


def expected(objective, normaliser, seed=0):
    _, _, now, old, advantages = material(seed)
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones(n) for n in LENGTHS], batch_first=True)
    return reference.mixed_loss(
        pad(now, batch_first=True), pad(old, batch_first=True), pad(old, batch_first=True), advantages, mask,
        STORED, objective.correction, normaliser, beta=objective.shaping_beta, cap=objective.truncation,
        clamp=objective.likelihood_clamp, vocabulary=VOCABULARY, clip_fresh=objective.clip_fresh,
    )  # fmt: skip


OBJECTIVES = [
    ObjectiveConfig(),
    ObjectiveConfig(clip_fresh=False),
    ObjectiveConfig(correction="truncated", truncation=1.0),
    ObjectiveConfig(correction="none"),
    ObjectiveConfig(correction="clip"),
    ObjectiveConfig(correction="likelihood"),
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.correction}-{o.clip_fresh}")
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_through_the_host_are_the_reference(objective, seed):
    loss, gradient = call(objective, seed=seed)
    wanted, slope = expected(objective, len(LENGTHS) * 12, seed)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5, abs=1e-7)
    own = torch.cat([slope[i, :n] for i, n in enumerate(LENGTHS)])
    places, start = [], 0
    for n in LENGTHS:
        places += range(start + PROMPT - 1, start + PROMPT - 1 + n)
        start += n + PROMPT
    torch.testing.assert_close(gradient[places].double(), own, rtol=1e-5, atol=1e-7)
    others = torch.ones(len(gradient), dtype=torch.bool)
    others[places] = False
    assert not gradient[others].any()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"])
def test_stored_tokens_are_aggregated_as_fresh_ones_are(mode):
    """With a correction that is PPO's own term, a stored row counts as a fresh one does."""
    objective = ObjectiveConfig(correction="clip")
    loss, gradient = call(objective, mode)
    global STORED
    before, STORED = STORED, torch.zeros_like(STORED)
    try:
        alone, slope = call(objective, mode)
    finally:
        STORED = before
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(gradient, slope)


def test_the_size_of_a_weight_multiplies_fresh_and_stored_rows_alike():
    loss, gradient = call(ObjectiveConfig())
    half, slope = call(ObjectiveConfig(), scale=0.5)
    torch.testing.assert_close(half, loss / 2)
    torch.testing.assert_close(slope, gradient / 2)


def test_marks_are_read_as_they_are_written():
    weights = torch.tensor([[0.5, 2.0], [1.0, 3.0], [0.0, 0.0]])
    stored = torch.tensor([True, False, False])
    sizes, found = unmarked(marked(weights, stored), weights)
    assert torch.equal(sizes, weights)
    assert found.tolist() == stored.tolist()
    assert unmarked(None, weights)[1].tolist() == [False] * 3
