"""Loss and gradient against the float64 reference, for every correction, dtype, cut and extreme."""

import math

import pytest
import torch

from exgrpo.config import CORRECTIONS, ObjectiveConfig
from exgrpo.objective import effective_sample_size, fresh_loss, mixed_loss, replay_loss
from exgrpo.objective.loss import log_ratio
from exgrpo.objective.stats import ratio_stats
from tests.reference import objective as reference

VOCABULARY = 8
"""Of the model that the batches below could come from; with it V pi lies on both sides of the clamp of 5."""
GARBAGE = (math.nan, math.inf, -math.inf, -1e30, 0.0)


class Batch:
    """Random rows: lengths 0..T, some replayed (longer and shorter than the fresh ones), garbage in the padding."""

    def __init__(self, seed: int, rows: int = 5, width: int = 7, dtype=torch.float32, spread: float = 1.5):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, width + 1, (rows,), generator=g)
        lengths[0], lengths[1] = width, 1
        if seed % 3 == 0:
            lengths[2] = 0
        self.mask = torch.arange(width)[None] < lengths[:, None]
        self.replayed = torch.rand(rows, generator=g) < 0.5
        self.replayed[seed % 2] = True  # the longest or the shortest
        self.replayed[1 - seed % 2] = False
        self.advantages = torch.randn(rows, generator=g)
        self.advantages[3] = 0.0 if seed % 4 == 0 else self.advantages[3]
        self.logps = (-3 * torch.rand(rows, width, generator=g)).to(dtype)
        self.old_logps = (self.logps.float() + 0.4 * torch.randn(rows, width, generator=g)).to(dtype)
        self.behaviour_logps = (self.logps.float() + spread * torch.randn(rows, width, generator=g)).to(dtype)
        choice = torch.randint(len(GARBAGE), (2, rows, width), generator=g)
        garbage = torch.tensor(GARBAGE)[choice].to(dtype)
        own = self.mask & self.replayed[:, None]
        self.behaviour_logps = torch.where(own, self.behaviour_logps, garbage[0])
        self.old_logps = torch.where(self.mask & ~self.replayed[:, None], self.old_logps, garbage[1])
        self.width = width

    def select(self, rows, width=None) -> "Batch":
        part = object.__new__(Batch)
        for name in ("mask", "logps", "old_logps", "behaviour_logps"):
            setattr(part, name, getattr(self, name)[rows][:, :width])
        part.replayed, part.advantages, part.width = self.replayed[rows], self.advantages[rows], self.width
        return part

    def loss(self, config: ObjectiveConfig, scale: float = 1.0):
        leaf = self.logps.clone().requires_grad_()
        loss = mixed_loss(
            leaf, self.old_logps, self.behaviour_logps, self.advantages, self.mask, self.replayed, config, self.width,
            vocabulary=VOCABULARY,
        )  # fmt: skip
        (loss * scale).backward()
        return loss.detach() * scale, leaf.grad

    def expected(self, config: ObjectiveConfig, **more):
        return reference.mixed_loss(
            self.logps, self.old_logps, self.behaviour_logps, self.advantages, self.mask, self.replayed,
            config.correction, len(self.logps) * self.width, beta=config.shaping_beta, cap=config.truncation,
            clamp=config.likelihood_clamp, vocabulary=VOCABULARY, clip_fresh=config.clip_fresh, **more,
        )  # fmt: skip


def assert_equal(got, expected, dtype=torch.float32):
    torch.testing.assert_close(got[0].double(), expected[0], rtol=2e-5, atol=2e-7)
    rtol, atol = (2e-4, 2e-7) if dtype == torch.float32 else (1e-2, 1e-6)
    torch.testing.assert_close(got[1].double(), expected[1], rtol=rtol, atol=atol)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("clip_fresh", [True, False])
def test_loss_and_gradient_equal_the_reference(correction, dtype, clip_fresh):
    for seed in range(8):
        batch = Batch(seed, dtype=dtype)
        config = ObjectiveConfig(correction=correction, clip_fresh=clip_fresh)
        assert_equal(batch.loss(config), batch.expected(config), dtype)


@pytest.mark.parametrize(
    "options",
    [
        dict(correction="shaped", shaping_beta=1.0),
        dict(correction="shaped", shaping_beta=1e-3),
        dict(correction="truncated", truncation=0.5),
        dict(correction="truncated", truncation=5.0),
        dict(correction="likelihood", likelihood_clamp=0.7),
        dict(correction="likelihood", likelihood_clamp=50.0),
    ],
)
def test_constants_of_the_corrections(options):
    for seed in range(4):
        batch, config = Batch(seed), ObjectiveConfig(**options)
        assert_equal(batch.loss(config), batch.expected(config))


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 1.5])
def test_epsilon_of_either_clip(epsilon):
    for seed in range(4):
        batch, config = Batch(seed, spread=0.5), ObjectiveConfig(correction="clip")
        leaf = batch.logps.clone().requires_grad_()
        loss = mixed_loss(
            leaf, batch.old_logps, batch.behaviour_logps, batch.advantages, batch.mask, batch.replayed, config,
            batch.width, epsilon,
        )  # fmt: skip
        loss.backward()
        assert_equal((loss.detach(), leaf.grad), batch.expected(config, epsilon=epsilon))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_two_parts_alone(correction):
    batch, config = Batch(2), ObjectiveConfig(correction=correction)
    weight = 1 / (len(batch.logps) * batch.width)
    leaf = batch.logps.clone().requires_grad_()
    out = replay_loss(
        leaf, batch.behaviour_logps, batch.advantages, batch.mask, batch.replayed, config, weight,
        vocabulary=VOCABULARY,
    )  # fmt: skip
    out.loss.backward()
    assert_equal((out.loss.detach(), leaf.grad), batch.expected(config, parts=("replayed",)))
    assert (out.per_token[~batch.replayed] == 0).all()
    assert (out.per_token[~batch.mask] == 0).all()
    assert not out.per_token.requires_grad
    torch.testing.assert_close(out.per_token.sum() * weight, out.loss.detach())
    leaf = batch.logps.clone().requires_grad_()
    loss = fresh_loss(leaf, batch.old_logps, batch.advantages, batch.mask & ~batch.replayed[:, None], weight)
    loss.backward()
    assert_equal((loss.detach(), leaf.grad), batch.expected(config, parts=("fresh",)))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_weights_may_differ_by_row(correction):
    batch, config = Batch(4), ObjectiveConfig(correction=correction)
    weights = torch.rand(len(batch.logps), 1)
    whole = replay_loss(
        batch.logps, batch.behaviour_logps, batch.advantages, batch.mask, batch.replayed, config, weights,
        vocabulary=VOCABULARY,
    )  # fmt: skip
    rows = torch.stack(
        [
            replay_loss(
                p.logps, p.behaviour_logps, p.advantages, p.mask, p.replayed, config, float(weights[i]),
                vocabulary=VOCABULARY,
            ).loss
            for i in range(len(batch.logps))
            for p in [batch.select([i])]
        ]
    )  # fmt: skip
    torch.testing.assert_close(whole.loss, rows.sum())


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_cut_into_micro_batches_changes_nothing(correction):
    """Parts weighted by their share of the rows sum to the whole, in loss and gradient."""
    batch, config = Batch(5, rows=9), ObjectiveConfig(correction=correction)
    whole, gradient = batch.loss(config)
    for cut in ([9], [4, 5], [1, 2, 3, 3], [1] * 9, [8, 1]):
        losses, gradients, start = [], [], 0
        for size in cut:
            loss, part = batch.select(slice(start, start + size)).loss(config, size / 9)
            losses.append(loss)
            gradients.append(part)
            start += size
        torch.testing.assert_close(sum(losses), whole)
        torch.testing.assert_close(torch.cat(gradients), gradient)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_padding_and_row_order_change_nothing(correction):
    batch, config = Batch(7), ObjectiveConfig(correction=correction)
    whole, gradient = batch.loss(config)

    order = torch.tensor([3, 0, 4, 2, 1])
    loss, permuted = batch.select(order).loss(config)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(permuted, gradient[order])

    for filler in GARBAGE:
        wide = batch.select(slice(None))
        for name in ("logps", "old_logps", "behaviour_logps"):
            column = getattr(wide, name)
            setattr(wide, name, torch.cat([column, torch.full((len(column), 3), filler)], 1))
        wide.mask = torch.cat([wide.mask, torch.zeros(len(wide.mask), 3, dtype=torch.bool)], 1)
        loss, padded = wide.loss(config)
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(padded[:, :7], gradient)
        assert (padded[:, 7:] == 0).all()


def test_integer_and_boolean_masks_are_the_same():
    batch, config = Batch(1), ObjectiveConfig()
    loss, gradient = batch.loss(config)
    for dtype in (torch.int64, torch.int32, torch.float32):
        other = batch.select(slice(None))
        other.mask = batch.mask.to(dtype)
        same_loss, same_gradient = other.loss(config)
        assert torch.equal(loss, same_loss)
        assert torch.equal(gradient, same_gradient)


EXTREMES = [(-2.0, -91.0), (-91.0, -2.0), (-1e4, -1e-3), (-1e-3, -1e4), (0.0, -700.0), (-700.0, 0.0), (-5.0, -5.0)]


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("replayed", [True, False])
def test_extreme_ratios_stay_finite(correction, dtype, advantage, replayed):
    """A behaviour log-prob of -91 against -2 now, and worse: exp alone would overflow in float32."""
    logps = torch.tensor([[now for now, _ in EXTREMES]], dtype=dtype, requires_grad=True)
    then = torch.tensor([[before for _, before in EXTREMES]], dtype=dtype)
    for clip_fresh in (True, False):
        logps.grad = None
        loss = mixed_loss(
            logps, then, then, torch.tensor([advantage]), torch.ones(1, len(EXTREMES)), torch.tensor([replayed]),
            ObjectiveConfig(correction=correction, clip_fresh=clip_fresh), len(EXTREMES),
            vocabulary=VOCABULARY,
        )  # fmt: skip
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(logps.grad).all()
        if advantage == 0:
            assert loss == 0
            assert (logps.grad == 0).all()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_extreme_ratios_are_right_where_the_term_is_bounded(correction):
    advantages = torch.tensor([1.0, -1.0] if correction != "clip" else [1.0, 1.0])
    pairs = [EXTREMES[0], EXTREMES[1], EXTREMES[6]]
    logps = torch.tensor([[now for now, _ in pairs]] * 2)
    then = torch.tensor([[before for _, before in pairs]] * 2)
    mask, replayed = torch.ones(2, 3), torch.tensor([True, True])
    leaf, config = logps.clone().requires_grad_(), ObjectiveConfig(correction=correction)
    loss = mixed_loss(leaf, then, then, advantages, mask, replayed, config, 3, vocabulary=VOCABULARY)
    loss.backward()
    expected = reference.mixed_loss(
        logps, then, then, advantages, mask, replayed, correction, 6, vocabulary=VOCABULARY
    )  # fmt: skip
    assert_equal((loss.detach(), leaf.grad), expected)


def test_gradient_of_the_shaped_ratio():
    """beta w / (w + beta)^2 A, and none of it where the ratio is far from beta."""
    log_w = torch.linspace(-12, 6, 37)
    then = torch.full((1, 37), -20.0)
    leaf = (then + log_w).requires_grad_()
    config = ObjectiveConfig(shaping_beta=0.1)
    replay_loss(leaf, then, torch.tensor([2.0]), torch.ones(1, 37), torch.tensor([True]), config, 1.0).loss.backward()
    w = log_w.double().exp()
    torch.testing.assert_close(-leaf.grad[0].double(), 0.1 * w / (w + 0.1) ** 2 * 2.0, rtol=1e-3, atol=1e-7)


def test_the_truncated_weight_has_no_gradient():
    """The gradient is min(w, c) A, once: a weight with a gradient would add min(w, c) A log pi."""
    leaf = torch.tensor([[-3.0, -1.0]], requires_grad=True)
    then = torch.tensor([[-2.0, -2.0]])
    out = replay_loss(
        leaf, then, torch.tensor([0.5]), torch.ones(1, 2), torch.tensor([True]),
        ObjectiveConfig(correction="truncated", truncation=1.0), 1.0,
    )  # fmt: skip
    out.loss.backward()
    torch.testing.assert_close(leaf.grad, -0.5 * torch.tensor([[math.exp(-1), 1.0]]))


def test_no_gradient_reaches_what_is_not_learned():
    for correction in CORRECTIONS:
        batch = Batch(2)
        then = batch.behaviour_logps.clone().requires_grad_()
        advantages = batch.advantages.clone().requires_grad_()
        leaf = batch.logps.clone().requires_grad_()
        out = replay_loss(
            leaf, then, advantages, batch.mask, batch.replayed, ObjectiveConfig(correction=correction), 1.0,
            vocabulary=VOCABULARY,
        )  # fmt: skip
        out.loss.backward()
        assert (leaf.grad[~batch.replayed] == 0).all()
        assert (leaf.grad[~batch.mask] == 0).all()
        for tensor in (out.stats.log_ratio, out.stats.log_sum, out.stats.log_sum_squares, out.stats.clamped):
            assert not tensor.requires_grad


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_batch_without_replayed_or_without_fresh_rows(correction):
    config = ObjectiveConfig(correction=correction)
    for value in (True, False):
        batch = Batch(1)
        batch.replayed = torch.full_like(batch.replayed, value)
        batch.old_logps = batch.behaviour_logps = torch.where(batch.mask, batch.logps - 0.3, math.nan)
        assert_equal(batch.loss(config), batch.expected(config))


def test_log_ratio_is_zero_outside_the_mask_and_float32_at_least():
    now = torch.tensor([[-1.0, math.nan]], dtype=torch.bfloat16)
    then = torch.tensor([[-2.0, math.inf]], dtype=torch.bfloat16)
    got = log_ratio(now, then, torch.tensor([[1, 0]]))
    assert got.dtype == torch.float32
    assert got.tolist() == [[1.0, 0.0]]
    assert log_ratio(now.double(), then, torch.tensor([[1, 0]])).dtype == torch.float64


def test_ratio_figures_equal_plain_ones():
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        log_w = 2 * torch.randn(4, 6, generator=g)
        mask = torch.arange(6)[None] < torch.tensor([6, 3, 1, 4])[:, None]
        stats = ratio_stats(torch.where(mask, log_w, math.nan), mask)
        rows = [[float(x) for x, m in zip(r, ms, strict=True) if m] for r, ms in zip(log_w, mask, strict=True)]
        plain = reference.ratio_figures(rows)
        assert stats.log_ratio.tolist() == pytest.approx(plain["log_ratio"], rel=1e-5, abs=1e-6)
        assert stats.tokens.tolist() == [6, 3, 1, 4]
        assert float(stats.log_sum.logsumexp(0).exp() / stats.tokens.sum()) == pytest.approx(plain["mean"], rel=1e-5)
        ess = effective_sample_size(stats.log_sum, stats.log_sum_squares, stats.tokens)
        assert ess == pytest.approx(plain["ess"], rel=1e-5)


@pytest.mark.parametrize("shift", [-500.0, -91.0, 0.0, 91.0, 500.0])
def test_effective_sample_size_of_extreme_ratios(shift):
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    log_w = torch.tensor([[0.0, 1.0, -1.0], [0.5, math.nan, math.nan]]) + shift
    stats = ratio_stats(log_w, mask)
    ess = effective_sample_size(stats.log_sum, stats.log_sum_squares, stats.tokens)
    assert ess == pytest.approx(reference.ratio_figures([[0.0, 1.0, -1.0], [0.5]])["ess"], rel=1e-3)


def test_effective_sample_size_is_one_for_equal_ratios_and_nan_for_none():
    mask = torch.ones(2, 3, dtype=torch.bool)
    stats = ratio_stats(torch.full((2, 3), 0.7), mask)
    assert effective_sample_size(stats.log_sum, stats.log_sum_squares, stats.tokens) == pytest.approx(1.0, abs=1e-5)
    stats = ratio_stats(torch.zeros(2, 3), ~mask)
    assert math.isnan(effective_sample_size(stats.log_sum, stats.log_sum_squares, stats.tokens))
    one_empty = torch.tensor([[1, 1, 1], [0, 0, 0]]).bool()
    stats = ratio_stats(torch.zeros(2, 3), one_empty)
    assert effective_sample_size(stats.log_sum, stats.log_sum_squares, stats.tokens) == pytest.approx(1.0, abs=1e-5)
    assert math.isnan(stats.log_ratio[1])
