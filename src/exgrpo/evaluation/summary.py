"""Summary of an evaluation file: rates with intervals, paired differences of models, disagreements of verifiers."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .intervals import FEWEST, of_difference, of_mean, within_variance
from .passk import pass_at_k
from .scoring import THRESHOLD
from .store import Answer, Store, StoredQuestion

Figures = dict[str, Any]
TAIL = 160  # characters of a completion that a table shows


def summarize(store: Store) -> Figures:
    """Return JSON values: `models`, `results` (a row per model and benchmark), `differences` (a row per pair)."""
    questions: dict[str, list[StoredQuestion]] = defaultdict(list)
    for question in store.questions():
        questions[question.benchmark].append(question)
    models, benchmarks = store.models(), store.benchmarks()
    tallies: dict[tuple[str, str], Tally] = {}
    results, differences = [], []
    for number, name, _ in models:
        answers: dict[int, list[Answer]] = defaultdict(list)
        for answer in store.answers(number):
            answers[answer.question].append(answer)
        for benchmark, asked in questions.items():
            own = {question.number: answers[question.id] for question in asked if answers[question.id]}
            if own:
                tally = tallies[name, benchmark] = Tally(own, benchmarks[benchmark]["verifiers"][0])
                results.append({"model": name, "benchmark": benchmark, **tally.figures(len(asked))})
    for (one, _), (other, _) in itertools.combinations(((name, settings) for _, name, settings in models), 2):
        for benchmark in questions:
            if (one, benchmark) in tallies and (other, benchmark) in tallies:
                found = tallies[other, benchmark].against(tallies[one, benchmark])
                if found is not None:
                    differences.append({"model": other, "against": one, "benchmark": benchmark, **found})
    return {
        "models": [{"name": name, **settings} for _, name, settings in models],
        "benchmarks": benchmarks,
        "results": results,
        "differences": differences,
    }


class Tally:
    """The answers of a model to a benchmark, by the number of the question.

    The verifier `decides` says what is right.
    """

    def __init__(self, answers: Mapping[int, Sequence[Answer]], decides: str):
        self.answers, self.decides = answers, decides
        self.counts: dict[int, tuple[int, int]] = {}
        for number, given in answers.items():
            rewards = [answer.rewards[decides] for answer in given]
            known = [reward > THRESHOLD for reward in rewards if reward is not None]
            if known:
                self.counts[number] = sum(known), len(known)

    @property
    def accuracies(self) -> dict[int, float]:
        """Share of right samples, by the number of the question; without those that cannot be scored."""
        return {number: right / of for number, (right, of) in self.counts.items()}

    def figures(self, asked: int) -> Figures:
        """Return rates with their intervals, and other figures of the answers."""
        everything = [answer for given in self.answers.values() for answer in given]
        samples = [of for _, of in self.counts.values()]
        lengths = [answer.tokens for answer in everything if answer.tokens is not None]
        distinct = [
            len({a.text for a in given if (a.rewards[self.decides] or 0) > THRESHOLD})
            for given in self.answers.values()
        ]
        return {
            "questions": len(self.answers),
            "asked": asked,
            "samples": len(everything),
            "unscorable": len(everything) - sum(samples),
            "avg": asdict(of_mean(list(self.accuracies.values()), sum(samples))) if samples else None,
            "pass_at_k": self._pass_at_k(samples),
            "cut_share": sum(answer.finish == "length" for answer in everything) / len(everything),
            "mean_tokens": math.fsum(lengths) / len(lengths) if lengths else None,
            "distinct_right": sum(distinct) / len(distinct),
            "verifiers": {name: self._rate(everything, name) for name in everything[0].rewards},
            "disagreements": {
                name: self._disagreements(name) for name in everything[0].rewards if name != self.decides
            },
            "accuracies": {str(number): accuracy for number, accuracy in self.accuracies.items()},
        }

    def _pass_at_k(self, samples: Sequence[int]) -> Figures:
        """Return intervals for k = 1, 2, 4, ... that all scorable questions have samples for."""
        most = min(samples, default=0)
        ks = sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | ({most} if most else set()))
        right, of = zip(*self.counts.values(), strict=True) if samples else ((), ())
        return {str(k): asdict(of_mean(pass_at_k(of, right, k), sum(samples))) for k in ks}

    def _rate(self, answers: Sequence[Answer], verifier: str) -> float | None:
        known = [answer.rewards[verifier] for answer in answers if answer.rewards.get(verifier) is not None]
        return sum(reward > THRESHOLD for reward in known if reward is not None) / len(known) if known else None

    def _disagreements(self, verifier: str) -> list[list[int]]:
        """Return [question, sample] of the answers that only one of two verifiers accepts."""
        return [
            [number, answer.sample]
            for number, given in self.answers.items()
            for answer in given
            if _is_right(answer.rewards.get(verifier)) != _is_right(answer.rewards[self.decides])
        ]

    def against(self, other: "Tally") -> Figures | None:
        """Return the difference to another model on the questions that both answered; None below two."""
        common = sorted(self.counts.keys() & other.counts.keys())
        if len(common) < FEWEST:
            return None
        ours, theirs = ([tally.accuracies[n] for n in common] for tally in (self, other))
        within = [
            within_variance(accuracies, [tally.counts[n][1] for n in common])
            for tally, accuracies in ((self, ours), (other, theirs))
        ]
        known = None if None in within else math.fsum(value for value in within if value is not None)
        found = of_difference(ours, theirs, known)
        return {**asdict(found), "told_apart": found.told_apart}


def _is_right(reward: float | None) -> bool:
    return reward is not None and reward > THRESHOLD


def disagreements(store: Store, most: int = 50) -> list[Figures]:
    """Return a row per answer that verifiers disagree about, the first ones of each model.

    Golds, rewards, and how the answer ends.
    """
    asked = {question.id: question for question in store.questions()}
    rows = []
    for number, name, _ in store.models():
        found = (a for a in store.answers(number) if len({_is_right(reward) for reward in a.rewards.values()}) > 1)
        for answer in itertools.islice(found, most):
            question = asked[answer.question]
            row = {"model": name, "benchmark": question.benchmark, "question": question.number, "sample": answer.sample}
            rows.append({**row, "gold": question.gold, **answer.rewards, "ends with": answer.text[-TAIL:]})
    return rows


def told(row: Mapping[str, Any]) -> str:
    """Put a row of `differences` into words."""
    points = 100 * row["mean"]
    far = f"{abs(points):.1f} points {'above' if points > 0 else 'below'}" if round(points, 1) else "level with"
    head = (
        f"{row['benchmark']}: {row['model']} is {far} {row['against']} on the same "
        f"{row['questions']} questions (95 % interval {100 * row['low']:+.1f} to {100 * row['high']:+.1f})"
    )
    if row["told_apart"]:
        return f"{head}: told apart."
    if row["questions_needed"] is None:
        return f"{head}: not told apart, and no difference is seen."
    more = f" About {row['questions_needed']} such questions would tell a difference of this size apart"
    if (share := row["samples_help"]) is None:
        return f"{head}: not told apart.{more}."
    return f"{head}: not told apart.{more}; more samples of these would take away at most {share:.0%} of the variance."


def in_points(interval: Mapping[str, Any] | None) -> str | None:
    """Format an interval in percent: `43.2 [30.1, 57.0]`."""
    if interval is None:
        return None
    return f"{100 * interval['mean']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"
