"""How often each way of knowing entropies picks the true lowest: `lazy`, `stored` and `exact`.

    python benchmarks/entropy_choice.py [--seeds 2] [--steps 40]

The tiny policy trains with the preset `exgrpo` on a task that luck can win, so that one question has many right
completions; the preset's question and trajectory choices are left as they are. At every draw, all
stored trajectories of each drawn question are measured under the policy of that moment, beside the run and without a trace in
it: a pick is right if no other has a lower entropy. Questions with one trajectory have no choice and do not count.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from machine import save

from exgrpo.lab.studies.arm import run_arm, set_up_worker
from exgrpo.lab.studies.regime import Regime
from exgrpo.replay import choice, drawing

WAYS = ("lazy", "stored", "exact")
REGIME = Regime(
    "chains", {"modulus": 5, "lengths": (2, 3), "shares": (0.5, 0.5), "reward": "final"}, train_questions=64,
    questions_per_step=16, num_generations=8, learning_rate=5e-4, eval_questions=8, num_samples=2, evaluations=1,
    warm_up_batches=150,
)  # fmt: skip


class Watch:
    """In place of the core's `choose`: the same slots, and how many of them were the best of all."""

    def __init__(self) -> None:
        self.choices = self.right = 0
        self.ranks: list[int] = []
        self.excess: list[float] = []

    def __call__(
        self, buffer: Any, questions: Sequence[int], step: int, config: Any, rng: Any, score: Any, *more: Any
    ) -> Any:
        held = [buffer.slots_of(question) for question in questions]
        chosen = choice.choose(buffer, questions, step, config, rng, score, *more)
        contested = [(slots, found[0]) for slots, found in zip(held, chosen, strict=True) if found and len(slots) > 1]
        if contested:
            scores = iter(score(buffer.get_many([slot for slots, _ in contested for slot in slots])))
            for slots, found in contested:
                entropy = {slot: next(scores).entropy for slot in slots}
                rank = sum(other < entropy[found] for other in entropy.values())
                self.choices, self.right = self.choices + 1, self.right + (rank == 0)
                self.ranks.append(rank)
                self.excess.append(entropy[found] - min(entropy.values()))
        return chosen

    def figures(self) -> dict[str, Any]:
        return {
            "choices": self.choices,
            "right": self.right,
            "share": round(self.right / self.choices, 4) if self.choices else None,
            "second_share": round(float(np.mean(np.array(self.ranks) == 1)), 4) if self.ranks else None,
            "excess_nats_mean": round(float(np.mean(self.excess)), 5) if self.excess else None,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    set_up_worker()
    figures: dict[str, Any] = {}
    for way in WAYS:
        drawing.choose = watch = Watch()  # type: ignore[assignment]
        for seed in range(options.seeds):
            run_arm("exgrpo", seed, replace(REGIME, steps=options.steps), options={"entropy_refresh": way})
        figures[way] = watch.figures()
        print(way, figures[way], flush=True)
    command = "python " + " ".join(["benchmarks/entropy_choice.py", *sys.argv[1:]])
    regime = replace(REGIME, steps=options.steps).as_dict()
    print("saved", save("entropy_choice", command, {"seeds": options.seeds, "regime": regime, "ways": figures}))


if __name__ == "__main__":
    main()
