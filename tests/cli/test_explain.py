"""`exgrpo explain`: its figures are those of a run, and it says them to people and to machines."""

import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from exgrpo import PRESETS, ObjectiveConfig, ReplayConfig, resolve
from exgrpo.cli import explain
from exgrpo.cli.explain.draws import Rehearsals, Table
from exgrpo.cli.explain.figures import Setting, changed_options, group, reading
from exgrpo.cli.explain.pool import Pool, made_up, sizes_of, stream_of, with_everything_open
from exgrpo.cli.main import main
from exgrpo.experience.replayed import fingerprint_of, restore, snapshot_of
from exgrpo.log import LogReader
from exgrpo.objective import replay_loss
from exgrpo.replay import ReplayPlanner
from tests.support import harness
from tests.support.logs import TYPES, Dataset, Run, eventful
from trl import GRPOTrainer

ROOT = Path(__file__).parents[2]
SMALL = ("--questions", "90", "--batch", "16", "--draws", "20")
WITH_POOL = [name for name in PRESETS if resolve(name)[0].replays]
SIZES = (20,) * 9


@pytest.fixture
def say(capsys):
    """Run the command: its words, its JSON, or what it says against bad arguments."""

    def run(*arguments, code=0):
        capsys.readouterr()  # what others said before
        assert main(["explain", *map(str, arguments)]) == code, capsys.readouterr().err
        captured = capsys.readouterr()
        if code:
            return captured.err
        return json.loads(captured.out, parse_constant=pytest.fail) if "--json" in arguments else captured.out

    return run


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return eventful(tmp_path_factory.mktemp("log"))[0]


def pool_of(preset="exgrpo", sizes=SIZES, earlier=0, k=8, **options) -> Pool:
    pool = made_up(resolve(preset, **options)[0], k, sizes, earlier, 100, 0)
    with_everything_open(pool.planner, 8, 0.0)
    with pool.preview():
        pool.planner.plan(8, 100, 0.0, pool.score)
    return pool


def planners(pool: Pool, snapshot, n: int):
    """Real ones, each with a seed of its own, in the state of the pool."""
    buffer = pool.buffer
    for seed in range(n):
        planner = ReplayPlanner(
            pool.planner.config, stream_of(buffer.num_questions), buffer.num_generations, 1000 + seed,
            store=pool.store, types=buffer.types,
        )  # fmt: skip
        restore(planner.buffer, snapshot)
        planner.gate.open = True
        yield planner


# The figures are those of a run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("exgrpo", {}),
        ("exgrpo-paper-text", {}),
        ("random-replay", {}),
        ("prompt-replay", {}),
        ("quality-tiers", {}),
        ("hard-questions", {}),
        ("exgrpo", {"question_choice": "tiers", "tier_shares": (0, 0.5, 0.3, 0.2)}),
        ("exgrpo", {"question_choice": "linear", "mu": 0.2}),
    ],
    ids=str,
)
def test_replayed_counts_are_the_expected_ones(preset, options):
    """Of real planners: draws of a plan are independent where no bucket overflows, so their totals are multinomial."""
    pool = pool_of(preset, **options)
    table = Table(pool)
    rehearsals = Rehearsals(pool, table, batch=24, epoch=0.0, draws=20)
    assert rehearsals.exact
    total = np.zeros(len(table.labels))
    for planner in planners(pool, snapshot_of(pool.buffer), 120):
        plan = planner.plan(24, pool.step, 0.0, pool.score)
        assert plan.num_replayed == rehearsals.wanted
        total += table.by_row(plan.questions[plan.replayed])
    expected = rehearsals.expected * 120
    assert expected.sum() == pytest.approx(total.sum())
    likely = expected > 5
    got, want = [*total[likely], total[~likely].sum()], [*expected[likely], expected[~likely].sum()]
    if want[-1] < 1:
        got, want = got[:-1], np.array(want[:-1]) * (sum(got[:-1]) / sum(want[:-1]))
    if len(got) > 1:
        assert chisquare(got, want).pvalue > 1e-6


@pytest.mark.parametrize(
    ("preset", "sizes", "options"),
    [
        ("exgrpo", (0, 9, 7, 5, 3, 5, 7, 9, 0), {}),  # the middle overflows
        ("headroom-drift", SIZES, {}),
        ("entropy-guided", SIZES, {}),
        ("exgrpo", SIZES, {"by_problem_type": True}),
        ("exgrpo", SIZES, {"difficulty": "spread"}),
        ("rescue", (0, 60, 0, 0, 0, 0, 0, 0, 0), {}),
    ],
    ids=str,
)
def test_means_over_rehearsals_are_those_of_real_plans(preset, sizes, options):
    """What is replayed, measured and refused, within five and a half standard errors of both."""
    pool = pool_of(preset, sizes, **options)
    table, draws, real, batch = Table(pool), 150, [], 48 if preset == "rescue" else 16
    rehearsals = Rehearsals(pool, table, batch=batch, epoch=0.0, draws=draws)
    rng = np.random.default_rng(3)
    for planner in planners(pool, snapshot_of(pool.buffer), 150):
        planner.stream = stream_of(sum(sizes), rng.permutation(sum(sizes)))
        asked = []

        def score(trajectories, asked=asked):
            asked += trajectories
            return pool.score(trajectories)

        plan = planner.plan(batch, pool.step, 0.0, score)
        questions = [c.trajectory.question for c in plan.added] or plan.questions[plan.replayed]
        if preset == "rescue":
            p = np.nan_to_num(planner.buffer.questions.accuracy(plan.questions))
            outcomes = (rng.random((batch, 8)) < p[:, None]).astype(int)
            questions = [r.choice.trajectory.question for r in planner.rescue(plan, outcomes, score)]
        by_row = table.by_row(np.array(questions, int))
        real.append([*by_row, len(asked), plan.refused])
    counts = [[*table.by_row(d.questions), d.measured, d.refused] for d in rehearsals.all]
    real, ours = np.array(real, float), np.array(counts, float)
    error = np.sqrt((real.var(0) + ours.var(0)) / draws)
    assert (abs(real.mean(0) - ours.mean(0)) < 5.5 * error + 1e-9).all(), (real.mean(0), ours.mean(0))
    assert real.sum() > 0
    if rehearsals.exact:
        assert (abs(real.mean(0)[:-2] - rehearsals.expected) < 5.5 * error[:-2] + 1e-2).all()
    else:
        assert rehearsals.expected == pytest.approx(ours.mean(0)[:-2])


def test_weights_over_problem_types_worked_by_hand():
    """Of type 0 only bucket 4 is left; the others have the Gaussian over buckets 1 to 7; types have their sizes' shares."""
    pool = pool_of(by_problem_type=True, sizes=(90,) * 9)
    buffer = pool.buffer
    for question in np.flatnonzero(buffer.types == 0).tolist():
        if buffer.questions.successes[question] != 4 and not buffer.retired[question]:
            buffer.retire(question)
    left = [int(buffer.bucket_sizes(kind).sum()) for kind in range(3)]
    share = left[0] / sum(left)
    assert 0.02 < share < 0.2
    gaussian = np.exp(-((np.arange(1, 8) - 4.0) ** 2) / 2)
    wanted = (1 - share) * gaussian / gaussian.sum() + share * (np.arange(1, 8) == 4)
    assert Table(pool).weights() == pytest.approx([0.0, *wanted, 0.0])


def test_a_rehearsal_changes_nothing():
    for preset in ("exgrpo-paper-text", "rescue", "headroom-drift", "prompt-replay", "entropy-guided"):
        pool = pool_of(preset, max_uses=1, max_age=15)
        before = fingerprint_of(pool.buffer), pool.planner.iteration
        Rehearsals(pool, Table(pool), batch=16, epoch=0.0, draws=3)
        assert (fingerprint_of(pool.buffer), pool.planner.iteration) == before, preset


@pytest.mark.slow
def test_a_run_s_next_step(tmp_path, say, monkeypatch):
    """Through the trainer: what is said of its log is what its planner, with other seeds, does next."""
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", harness.scripted_generation)
    hard = np.random.default_rng(0).random(24)

    def script(generation, prompt, member):
        question = int(re.search(r"q(\d+)=", prompt)[1])
        right = np.random.default_rng((generation, question, member)).random() > 0.2 + 0.6 * hard[question]
        return f"{'abcdefgh'[member]}{question}$" if right else f"{member}-$"

    options = {"sigma": 0.4, "start_pass_at_1": 0.0, "entropy_refresh": "exact"}
    trainer = harness.trainer(harness.config(tmp_path, max_steps=8, **options), harness.questions(24), script=script)
    trainer.train()
    planner = trainer.planner
    given = [text for name, value in options.items() for text in (f"--{name}", value)]
    found = say("--experience", tmp_path, "--batch", 8, "--draws", 1500, "--json", *given)
    assert (found["k"], found["step"]) == (4, 8)
    assert found["gate"] == {"open": True, "why": None}
    pool = found["pool"]
    assert (pool["replayable"], pool["retired"], pool["trajectories"]) == (
        planner.buffer.num_replayable, planner.buffer.num_retired, len(planner.buffer)
    )  # fmt: skip
    assert pool["pass_at_1"] == planner.gate.pass_at_1
    assert planner.buffer.num_replayable > 6
    snapshot, bucket = snapshot_of(planner.buffer), Counter()
    asked, plans = 0, 600
    for seed in range(plans):
        other = ReplayPlanner(planner.config, stream_of(24), 4, seed, store=planner.buffer.store)
        restore(other.buffer, snapshot)
        other.restore(replace(planner.state(8), pass_number=0, cursor=0, deferred=()))
        scored = []
        plan = other.plan(8, 8, 0.0, lambda t, scored=scored: scored.extend(t) or np.zeros(len(t)))
        asked += len(scored)
        accuracy = planner.buffer.questions.accuracy(plan.questions[plan.replayed])
        bucket.update(np.floor(accuracy * 4 + 0.5).astype(int).tolist())
    assert sum(bucket.values()) == 4 * plans
    for b, row in enumerate(found["questions"]):
        error = math.hypot(row["standard_error"], 1 / math.sqrt(plans))  # a count of four has a deviation of at most 2
        assert bucket[b] / plans == pytest.approx(row["expected"], abs=5.5 * error), row
    assert asked / plans == pytest.approx(found["trajectories"]["measured"], rel=0.1)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("options", [(), ("--epsilon", 0.3, "--shaping_beta", 0.3, "--truncation", 2)], ids=str)
def test_gradient_weights_are_those_of_the_loss(preset, options, say):
    """To 1e-6, by autograd through `replay_loss`; a fresh token is a replayed one under PPO's clip."""
    found = say("--preset", preset, *SMALL, *options, "--json")["gradient"]
    values = {name[2:]: value for name, value in zip(options[::2], options[1::2], strict=True)}
    epsilon = values.pop("epsilon", 0.2)
    config = resolve(preset, **values)[1]
    kinds = {"fresh": (replace(config, correction="clip"), epsilon if config.clip_fresh else math.inf)}
    if resolve(preset)[0].mixing in ("none", "prompt", "prefix"):
        assert found["replayed"] is None
    else:
        kinds["replayed"] = config, epsilon
    for kind, (objective, eps) in kinds.items():
        for sign, told in zip((1.0, -1.0), found[kind].values(), strict=True):
            for w, weight in zip(found["w"], told, strict=True):
                logps = torch.full((1, 1), math.log(0.5), dtype=torch.float64, requires_grad=True)
                loss = replay_loss(
                    logps, logps.detach() - math.log(w), torch.tensor([sign], dtype=torch.float64), torch.ones(1, 1),
                    torch.tensor([True]), objective, 1.0, eps, vocabulary=151_936,
                ).loss  # fmt: skip
                loss.backward()
                assert -float(logps.grad) / sign == pytest.approx(weight, abs=1e-6)


def test_gradient_weights_worked_by_hand(say):
    found = say(*SMALL, "--json")["gradient"]
    assert found["replayed"]["positive"] == pytest.approx([0.1 * w / (w + 0.1) ** 2 for w in found["w"]])
    assert found["fresh"]["positive"] == pytest.approx([0.01, 0.03, 0.1, 0.3, 1.0, 0.0, 0.0])
    assert found["fresh"]["negative"] == pytest.approx([0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 10.0])
    of_pi = say("--preset", "quality-tiers", "--vocabulary", 1000, *SMALL, "--json")["gradient"]["of_pi"]
    assert of_pi["weight"] == pytest.approx([min(1000 * pi, 5.0) for pi in of_pi["pi"]])


def test_the_net_push_worked_by_hand(say):
    """K = 8. The stored success has 7/8 and counts .0826 of it; seven failures have -1/8 each."""
    found = say(*SMALL, "--json")["group"]
    assert (found["fresh"], found["stored"], len(found["rows"])) == (7, 1, 8)
    assert found["rows"][0] == {
        "successes": 0, "positive": pytest.approx(0.1 / 1.21 * 7 / 8), "negative": pytest.approx(-7 / 8),
        "net": pytest.approx(-0.8027, abs=5e-5),
    }  # fmt: skip
    assert found["reading"] == "pushes down while fewer than 7 of 7 are right; teaches nothing with 7 of 7 right"
    rescue = say("--preset", "rescue", *SMALL, "--json")["group"]
    assert [(r["successes"], r["net"]) for r in rescue["rows"]] == [(0, pytest.approx(7 * 7 / 8))]
    weighted = say("--preset", "positive-weight", *SMALL, "--json")["group"]
    assert [r["net"] for r in weighted["rows"]] == pytest.approx([7 * s * (8 - s) / 8 for s in range(9)])
    assert weighted["reading"].startswith("teaches nothing with 0 of 8 right; pushes up with 1 to 7 of 8 right;")
    fresh = say("--baseline", "fresh", *SMALL, "--json")["group"]["rows"]
    assert fresh[7]["net"] == 0.0


def test_a_group_has_as_many_stored_members_as_there_are():
    setting = Setting("x", {}, *resolve(replays_per_group=3), batch=8, k=8)
    assert (group(setting)["fresh"], group(setting)["stored"]) == (5, 3)
    assert group(setting, in_a_group=1.4)["stored"] == 1
    whole = group(replace(setting, replay=replace(setting.replay, replays_per_group=100)))
    assert (whole["fresh"], whole["stored"], [r["successes"] for r in whole["rows"]]) == (0, 8, list(range(9)))


def test_readings():
    def rows(*nets):
        return [{"successes": i, "positive": 1.0, "negative": -1.0, "net": net} for i, net in enumerate(nets)]

    assert (
        reading(rows(-1.0, -1.0, -1.0, 1.0), 3)
        == "pushes down while fewer than 3 of 3 are right; pushes up with 3 of 3 right"
    )
    assert reading(rows(1e-17, 1.0, 1.0), 2) == "balances with 0 of 2 right; pushes up with 1 to 2 of 2 right"
    assert reading(rows(1.0, 1.0, 1.0), 2) == "pushes up with 0 to 2 of 2 right"


def test_the_shares_of_the_paper_s_text(say):
    """13.7 to 14.7 % a bucket at sigma 1 and K = 8 [ALGORITHM]; a third or more in the middle at 0.125."""
    text = say("--sigma", "1.0", *SMALL)
    shares = [float(share) for share in re.findall(r"/8 (?:hard|medium|easy) .*? (\d+\.\d) %", text)]
    assert shares == [13.7, 14.3, 14.6, 14.7, 14.6, 14.3, 13.7, 0.0]
    weights = [row["weight"] for row in say(*SMALL, "--json")["questions"]]
    assert weights[4] == pytest.approx(1 / (1 + 2 * sum(math.exp(-z * z / 2) for z in (1, 2, 3))))  # 39.9 %
    assert sum(weights) == pytest.approx(1.0)


# What is looked at ------------------------------------------------------------------------------------------------------


def test_a_made_up_pool_is_what_a_run_would_hold():
    pool = made_up(ReplayConfig(), 4, [3, 3, 3, 3, 3], 0, 50, 1)
    buffer = pool.buffer
    assert (
        sorted(buffer.count.tolist()) == [0] * 6 + [1] * 3 + [2] * 3 + [3] * 3
    )  # all right: retired; none right: nothing
    assert (buffer.num_retired, buffer.num_replayable) == (3, 9)
    assert pool.planner.gate.pass_at_1 == pytest.approx((0 + 1 + 2 + 3) / 16)
    live = buffer.live_slots()
    assert set((50 - buffer.column("step")[live]).tolist()) <= set(range(1, 21))
    assert buffer.column("correct")[live].all()
    assert made_up(ReplayConfig(), 4, [3] * 5, 2, 50, 1).buffer.bucket_sizes().tolist() == [3, 3, 3, 3, 0]
    everything = made_up(ReplayConfig(admission="all", retirement="never"), 4, [3] * 5, 0, 50, 1).buffer
    assert everything.count.tolist() == [4] * 15
    assert made_up(ReplayConfig(capacity=7), 4, [3] * 5, 0, 50, 1).buffer.table.size == 7


@pytest.mark.parametrize(
    ("shape", "sizes"), [("uniform", [20] * 5), ("hard", [33, 27, 20, 13, 7]), ("easy", [6, 14, 20, 26, 34])]
)
def test_shapes_of_a_pool(shape, sizes):
    assert sizes_of(100, shape, 4) == sizes
    assert sum(sizes_of(1, shape, 8)) == 1


def test_the_same_seed_says_the_same(say):
    first = say(*SMALL, "--preset", "random-replay")
    assert say(*SMALL, "--preset", "random-replay") == first
    assert say(*SMALL, "--preset", "random-replay", "--seed", 1) != first


@pytest.mark.slow
def test_a_log_stays_as_it_is(say, log):
    before = hashlib.sha256(log.read_bytes()).hexdigest()
    for options in ((), ("--preset", "rescue"), ("--max_age", 3), ("--difficulty", "window"), ("--k", 8)):
        say("--experience", log.parent, "--batch", 8, "--draws", 5, *options)
    assert hashlib.sha256(log.read_bytes()).hexdigest() == before


def test_a_log_under_other_options(say, log):
    with LogReader(log) as reader:
        state = reader.state(reader.position())
    found = say("--experience", log, "--batch", 8, "--draws", 5, "--json")
    assert (found["step"], found["k"], found["pool"]["log"]) == (state.step, 4, str(log))
    assert [row["accuracy"] for row in found["questions"]] == [
        "0/4 unsolved",
        "1/4 hard",
        "2/4 medium",
        "3/4 easy",
        "4/4 easy",
    ]
    assert len(say("--experience", log, "--k", 8, "--draws", 5, "--json")["questions"]) == 9
    old = say("--experience", log, "--max_age", 3, "--step", 40, "--draws", 5, "--json")
    assert old["pool"]["expired"] == found["pool"]["trajectories"]
    assert (
        old["replay"]["idle"]
        == f"all over age: the last {old['pool']['expired']} trajectories were older than max_age=3"
    )
    assert say("--experience", log, "--capacity", 5, "--draws", 5, "--json")["pool"]["trajectories"] == 5


def test_problem_types_of_a_log(say, tmp_path):
    class Typed(Dataset):
        def record(self, question):
            return replace(super().record(question), problem_type=f"kind {question % TYPES}")

    run = Run(tmp_path / "experience.db", Typed(), by_problem_type=True)
    run.generations(8)
    run.close()
    sizes = [int(run.buffer.bucket_sizes(kind).sum()) for kind in range(TYPES)]
    options = ("--experience", tmp_path, "--by_problem_type", "true", "--batch", 6)
    rows = say(*options, "--draws", 400, "--json")["types"]
    assert [(row["type"], row["questions"]) for row in rows] == [(f"kind {i}", n) for i, n in enumerate(sizes)]
    for row, n in zip(rows, sizes, strict=True):
        assert row["expected"] == pytest.approx(3 * n / sum(sizes), abs=5.5 * row["standard_error"])
    assert re.search(r"^  kind 1 +\d+ +\d\.\d\d", say(*options, "--draws", 5), re.MULTILINE)


def test_a_closed_gate_says_what_it_needs_and_the_rest_is_shown(say):
    text = say("--preset", "entropy-guided", "--epoch", 3, *SMALL)
    assert re.search(
        r"^  gate +closed: epoch 3.00 < 5; 720 trajectories stored, must be more than 1000$", text, re.MULTILINE
    )
    assert "if it were open" in text
    assert "With probability 0.3: 16 of 16 questions are replayed" in text
    found = say("--pass_at_1", 0.2, *SMALL, "--json")
    assert found["gate"] == {"open": False, "why": "gate closed: Pass@1 0.20 over 256 completions, must exceed 0.35"}
    assert found["replay"]["replayed"] == 8


def test_schedules_follow_the_epoch(say):
    wanted = [
        say("--preset", "quality-tiers", *SMALL, "--epoch", e, "--json")["replay"]["wanted"] for e in (0, 1, 2, 9)
    ]
    assert wanted == [4, 6, 8, 11]  # floor of .3, .4, .5, .7 of 16


@pytest.mark.parametrize("preset", ["exgrpo", "prompt-replay", "rehearsal"])
def test_less_than_a_question_a_step_is_a_coin(preset, say):
    options = ("--preset", preset, "--replay_share", 0.05, *SMALL)
    assert "With probability 0.8: " in say(*options)
    found = say(*options, "--json")["replay"]
    assert (found["probability"], found["wanted"], found["replayed"]) == (0.8, 1, 1.0)
    assert say("--replay_share", 0.05, *SMALL, "--batch", 20, "--json")["replay"]["probability"] is None


def test_an_idle_replay_says_why(say):
    assert "None: replay_share is 0." in say("--replay_share", 0, *SMALL)
    assert "None: nothing right yet: no completion of 5 questions" in say("--pool", "0:5,8:5", "--batch", 4)


# How it is said ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_explained(preset, say):
    text, found = say("--preset", preset, *SMALL), say("--preset", preset, *SMALL, "--json")
    assert max(map(len, text.splitlines())) <= 110
    assert text.startswith(f"preset {preset}, 16 questions a step, 8 completions each\n")
    heads = ["Gradient weight", "Net push"]
    if preset in WITH_POOL:
        heads = ["Experience", "Replay", "Questions by", *heads]
        assert found["replay"]["replayed"] == pytest.approx(
            sum(row["expected"] for row in found["questions"]), abs=1e-6
        )
    else:
        assert "Nothing is stored and nothing is replayed" in text
    places = [re.search(rf"^{head}", text, re.MULTILINE).start() for head in heads]
    assert places == sorted(places)
    for option in found["options"]:
        assert re.search(rf"^  {option['option']} .* preset {preset}$", text, re.MULTILINE)
    assert list(found) == list(say(*SMALL, "--json"))


def test_options_and_where_they_come_from(say):
    replay, objective = resolve("rescue", positive_weight=4.0, sigma=0.125, mu=0.4)
    given = dict.fromkeys(explain.option_types()) | {"positive_weight": 4.0, "sigma": 0.125, "mu": 0.4}
    rows = {row["option"]: row for row in changed_options(Setting("rescue", given, replay, objective, 8, 8))}
    assert rows["mixing"] == {"option": "mixing", "value": "rescue", "default": "share", "from": "preset rescue"}
    assert rows["mu"]["from"] == "command line"
    assert rows["positive_weight"]["from"] == "command line (preset: 8.0)"
    assert not {"sigma", "truncation"} & set(rows)
    configs = resolve(rule_options={"width": 0.1})
    assert len(changed_options(Setting("exgrpo", {"rule_options": {"width": 0.1}}, *configs, 8, 8))) == 1
    back = say("--preset", "rescue", "--mixing", "share", *SMALL)
    assert re.search(r"^  mixing +share +share +command line \(preset: rescue\)$", back, re.MULTILINE)
    assert "All options are at their defaults." in say(*SMALL)


def test_every_option_can_be_given():
    """As text, and it is read as the value that it is."""
    parser = explain.parser()
    for field in [*fields(ReplayConfig), *fields(ObjectiveConfig)]:
        value = {"width": 0.1} if field.name == "rule_options" else field.default
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace("'", '"')
        given = getattr(parser.parse_args([f"--{field.name}", text]), field.name)
        assert (given, type(given)) == (value, type(value)), field.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sigma", 0), r"sigma must be a number in \(0, inf\), but is 0.0. The default is 0.125"),
        (("--sigma", "wide"), "argument --sigma: invalid float value"),
        (("--mixing", "foo"), "mixing must be one of 'share', "),
        (("--range_adapts", "maybe"), "must be true or false, but is 'maybe'"),
        (("--tier_shares", "1;2"), "must be numbers with commas between"),
        (("--preset", "nix"), "Choices: exgrpo, "),
        (("--k", 1), "at least 2"),
        (("--batch", "many"), "argument --batch"),
        (("--epoch", -1), "at least 0"),
        (("--pass_at_1", 1.5), "from 0 to 1"),
        (("--pool", "0:3,9:1"), r"RIGHT from 0 to 8 \(of --k 8\), for example 0:400,1:100,8:50; but it holds '9:1'"),
        (("--pool", "4"), "but it holds '4'"),
        (("--pool", "0:0"), "1 to 1,000,000 questions in all, but has 0"),
        (("--pool", "4:5", "--questions", 9), "Remove --questions"),
        (("--experience", "nowhere"), "there is no experience log nowhere"),
        (("--experience", "run", "--earlier", 2), "--earlier describes a made-up pool, but --experience run was given"),
        (("--wings",), "unknown option '--wings'"),
        (("--sig", 1.0), "unknown option '--sig'"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message, say):
    assert re.search(message, say(*arguments, code=2))


def test_what_is_no_log_is_a_failure(tmp_path, say):
    (tmp_path / "experience.db").write_text("no log")
    assert "experience.db" in say("--experience", tmp_path, code=1)


# The page ---------------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```console\n\$ exgrpo explain ?(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)


def blocks() -> list[tuple[str, str]]:
    page = ROOT / "docs" / "explain.md"
    return BLOCK.findall(page.read_text(encoding="utf-8")) if page.exists() else []


def test_the_page_has_outputs():
    assert len(blocks()) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "shown"), blocks())
def test_outputs_on_the_page_are_real(arguments, shown, say):
    """Whole, or in parts between lines of `...`."""
    text = say(*arguments.split())
    for part in shown.split("...\n"):
        assert part.strip("\n") in text, (
            f"exgrpo explain {arguments} says something else now: bring docs/explain.md up to date"
        )


def test_a_recipe_is_explained_and_options_are_written_as_for_train(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("preset: hard-questions\nnum_generations: 4\nreplay_share: 0.5\nlearning_rate: 1.0e-6\n")
    asked = ["explain", "--config", str(recipe), "--json", "--questions", "50", "--batch", "8"]
    assert main([*asked, "--question_choice", "tiers", "--tier_shares", "0.5", "0.5", "--range_adapts"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = json.dumps(found)
    assert "hard-questions" in text
    assert main(["explain", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "there is no recipe" in capsys.readouterr().err
