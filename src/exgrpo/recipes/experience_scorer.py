"""`ExperienceScorer` of the recipe "success and diversity": what a rollout is worth keeping for.

scorer = ExperienceScorer(numeric_reward, TextEncoder("path/to/encoder"))
score = scorer.score("What is 2 + 2?", "2 + 2 = 4", answer="4")
score.success, score.diversity, score.quality        # 1.0, 1.0, 1.0: nothing was seen of this question before

Or with the names and objects of the recipe's text, a verifier with `check` and an encoder with `encode`:

scorer = ExperienceScorer(verifier_model=verifier, embedding_model=SentenceTransformer("path/to/encoder"))
scorer.score_rollout(rollout, problem, previous_rollouts).quality
"""

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigurationError
from ..experience.quality import SUCCESS_WEIGHT, Diversity, Embedder, embed, quality_of, tier_of_each
from ..experience.trajectory import FloatArray
from ..rewards.completion import completion_text
from .entropy_guided import key_of

SUCCESS_ABOVE = 0.5

Verifier = Callable[..., Sequence[float | None]]


@dataclass(frozen=True)
class ExperienceScore:
    """The score of one rollout.

    Args:
        success: 1 or 0; NaN where the verifier could not score it.
        diversity: 1 - mean cosine similarity to the previous rollouts of the question, in [0, 1].
        quality: of both, in [0, 1]; NaN where success is.
        embedding: (D,) float16, to be kept beside the trajectory.
    """

    success: float
    diversity: float
    quality: float
    embedding: FloatArray = field(repr=False, compare=False)


class ExperienceScorer:
    """Scores rollouts, one or a batch, and remembers what it saw of each question.

    Args:
        verifier: a reward function as TRL calls one, `f(prompts=..., completions=..., **columns) -> list of float or None`:
            any of `exgrpo.rewards`, or the user's own. A reward above 0.5 is a success; None or NaN cannot be scored. Or an
            object whose `check(rollout, problem)` tells one rollout.
        embedder: texts -> (n, D) array: a `TextEncoder`, or any callable. Or an object whose `encode` takes texts, as that of
            sentence-transformers, or one text.
        success_weight: w in quality = w success + (1 - w) diversity.
        verifier_model: the recipe's name of the verifier.
        embedding_model: the recipe's name of the embedder.

    Raises:
        ConfigurationError: an argument of another kind, or a success weight outside [0, 1].
    """

    def __init__(
        self,
        verifier: Any = None,
        embedder: Any = None,
        success_weight: float = SUCCESS_WEIGHT,
        *,
        verifier_model: Any = None,
        embedding_model: Any = None,
    ):
        self._verifier: Verifier = _given("verifier", verifier, verifier_model, "check", _checked)
        self._embedder: Embedder = _given("embedder", embedder, embedding_model, "encode", _encoded)
        quality_of(1.0, 1.0, success_weight)
        self._success_weight = success_weight
        self._numbers: dict[Hashable, int] = {}
        self._diversity = Diversity()

    def score(self, question: Any, completion: Any, /, *, remember: bool = True, **columns: Any) -> ExperienceScore:
        """Score one rollout; `columns` hold one value each (`answer="4"`), otherwise as `score_batch`."""
        one = {name: [value] for name, value in columns.items()}
        return self.score_batch([question], [completion], remember=remember, **one)[0]

    def score_batch(
        self,
        questions: Sequence[Any],
        completions: Sequence[Any],
        /,
        *,
        remember: bool = True,
        **columns: Sequence[Any],
    ) -> list[ExperienceScore]:
        """Score n rollouts; for a later one, earlier ones of its question are previous rollouts.

        Args:
            questions: n; what names a question: its prompt, as text, token ids or messages, known by its content; or an id.
            completions: n strings, or n lists of messages; the whole text is embedded, thinking included.
            remember: whether they are previous rollouts to all that come later; False: each is compared with what was
                remembered before this call alone.
            columns: n values each, for the verifier; `prompts` are the questions unless they are given.

        Raises:
            ConfigurationError: lengths that differ, or a verifier or an embedder that answers with another number.
        """
        n = len(questions)
        for name, given in {"completions": completions, **columns}.items():
            if isinstance(given, str) or len(given) != n:
                came = repr(given) if isinstance(given, str) else f"{len(given)}"
                raise ConfigurationError(f"{n} questions need a sequence of {n} {name}, not {came}.")
        if n == 0:
            return []
        successes = self._successes(questions, completions, columns)
        embeddings = embed(self._embedder, [completion_text(completion) for completion in completions])
        scores = []
        for question, success, embedding in zip(questions, successes, embeddings, strict=True):
            number = self._numbers.get(key_of(question), -1)
            diversity = self._diversity.of(number, embedding)
            if remember:
                self._diversity.add(self._numbers.setdefault(key_of(question), len(self._numbers)), embedding)
            quality = quality_of(success, diversity, self._success_weight)
            scores.append(ExperienceScore(success, diversity, quality, embedding))
        return scores

    def score_rollout(
        self, rollout: Any, problem: Any, previous: Sequence[Any] | None = None, **columns: Any
    ) -> ExperienceScore:
        """Score one rollout, with the arguments of the recipe's text.

        Args:
            rollout: a string, or a list of messages.
            problem: what names the question, as in `score_batch`; or a row, a mapping with `prompt`, `question` or `problem`,
                whose other columns go to the verifier.
            previous: rollouts of the problem, right or wrong, that the diversity is measured against: these alone, and nothing
                is remembered. By default all of the problem that were scored before, and this one is remembered.
            columns: one value each, for the verifier.
        """
        if isinstance(problem, Mapping):
            row = dict(problem)
            name = next((name for name in ("prompt", "question", "problem") if name in row), None)
            if name is None:
                raise ConfigurationError(
                    f"score_rollout needs a problem with 'prompt', 'question' or 'problem', not one with {sorted(row)}."
                )
            problem = row.pop(name) if name == "prompt" else row[name]
            columns = {**row, **columns}
        if previous is None:
            return self.score(problem, rollout, **columns)
        if isinstance(previous, str):
            raise ConfigurationError(f"score_rollout needs a list of previous rollouts, not {previous!r}.")
        one: dict[str, Sequence[Any]] = {name: [value] for name, value in columns.items()}
        (success,) = self._successes([problem], [rollout], one)
        own, *others = embed(self._embedder, [completion_text(text) for text in (rollout, *previous)])
        apart = Diversity()
        for other in others:
            apart.add(0, other)
        diversity = apart.of(0, own)
        return ExperienceScore(success, diversity, quality_of(success, diversity, self._success_weight), own)

    def seen(self, question: Any) -> int:
        """Return how many rollouts of a question are remembered."""
        return self._diversity.seen(self._numbers.get(key_of(question), -1))

    def forget(self) -> None:
        """Forget all rollouts: every question is new again."""
        self._numbers.clear()
        self._diversity.forget()

    @staticmethod
    def tiers(qualities: ArrayLike) -> NDArray[np.intp]:
        """Return the tier of each rollout of ONE question, oldest first: 0 the best 25 %, 3 the last.

        NaN ranks last.
        """
        return tier_of_each(qualities)

    def _successes(
        self, questions: Sequence[Any], completions: Sequence[Any], columns: dict[str, Sequence[Any]]
    ) -> list[float]:
        given = {"prompts": list(questions), **columns}
        answer = self._verifier(completions=list(completions), **given)
        if inspect.isawaitable(answer):
            answer.close() if inspect.iscoroutine(answer) else None
            raise ConfigurationError(
                "ExperienceScorer needs a synchronous verifier, but this one is async. Pass its synchronous form."
            )
        rewards = list(answer)
        if len(rewards) != len(completions):
            raise ConfigurationError(
                f"a verifier must return one reward for each of {len(completions)} completions, but gave {len(rewards)}."
            )
        unscorable = [reward is None or math.isnan(reward) for reward in rewards]
        return [
            math.nan if none else float(reward > SUCCESS_ABOVE)  # type: ignore[operator]
            for none, reward in zip(unscorable, rewards, strict=True)
        ]


def _given(name: str, own: Any, published: Any, method: str, wrapped: Callable[[Any], Any]) -> Any:
    """Return a verifier or an embedder, given under one of its two names, as a callable."""
    other = {"verifier": "verifier_model", "embedder": "embedding_model"}[name]
    if own is not None and published is not None:
        raise ConfigurationError(f"ExperienceScorer needs {name} or {other}, not both.")
    given = own if published is None else published
    if not isinstance(given, str) and callable(getattr(given, method, None)):  # text can be encoded too
        return wrapped(given)
    if not callable(given):
        raise ConfigurationError(
            f"ExperienceScorer needs a {name} ({other}) that can be called or has `{method}`, not {given!r}. A verifier by "
            "name: exgrpo.rewards.get_reward(name); an encoder by name: exgrpo.runtime.encoder.TextEncoder(name)."
        )
    return given


def _checked(model: Any) -> Verifier:
    """Make a reward function of an object that checks one rollout at a time."""
    named = {"rollout", "problem"} <= set(inspect.signature(model.check).parameters)

    def verify(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        pairs = zip(completions, prompts, strict=True)
        return [model.check(rollout=c, problem=p) if named else model.check(c, p) for c, p in pairs]

    return verify


def _encoded(model: Any) -> Embedder:
    """Make an embedder of an object that encodes texts, or one text at a time."""

    def embedder(texts: Sequence[str]) -> ArrayLike:
        try:
            answer = np.asarray(model.encode(list(texts)))
            if answer.ndim == 2 and len(answer) == len(texts):
                return answer
        except (TypeError, AttributeError, KeyError, ValueError):  # of one that takes a text, not a list
            pass
        return np.stack([np.asarray(model.encode(text)).reshape(-1) for text in texts])

    return embedder
