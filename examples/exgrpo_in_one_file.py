"""ExGRPO in one file: the whole method, without a framework, for reading. About a minute on one CPU core.

    python examples/exgrpo_in_one_file.py                 # with replay
    python examples/exgrpo_in_one_file.py --replay_share 0    # without: Dr. GRPO

The task: chains of arithmetic modulo 10, left to right. Question `3+4*2=`, completion `74.`: every running result, then a
full stop. The reward is 1 if all of them are right. References are to [ExGRPO], arXiv 2510.02245.
Sizes: B questions a step, K completions of each, T tokens of a completion, V words.
"""

import argparse
import math
import random
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WORDS = "0123456789+-*=. "
STOP, PAD = WORDS.index("."), WORDS.index(" ")
OPS = {"+": lambda a, b: (a + b) % 10, "-": lambda a, b: (a - b) % 10, "*": lambda a, b: (a * b) % 10}
T = 5  # up to four operations and the full stop


# ---- the task -------------------------------------------------------------------------------------------------------


def make_question(rng: random.Random) -> tuple[str, str]:
    """A question of two to four operations, padded in front to one width, and its answer."""
    value = rng.randrange(10)
    text, answer = str(value), ""
    for _ in range(rng.choice([2, 3, 4])):
        op, operand = rng.choice("+-*"), rng.randrange(10)
        value = OPS[op](value, operand)
        text, answer = f"{text}{op}{operand}", answer + str(value)
    return f"{text}=".rjust(10), answer + "."


def encode(text: str) -> list[int]:
    return [WORDS.index(c) for c in text]


# ---- the policy: a small causal transformer ---------------------------------------------------------------------------


class Policy(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, length: int = 16):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(WORDS))

    def forward(self, ids: Tensor) -> Tensor:
        """(N, L) -> (N, L, V): logits of the next word."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(self.words(ids) + self.places.weight[: ids.shape[1]], mask=mask, is_causal=True))

    @torch.no_grad()
    def generate(self, prompts: Tensor) -> Tensor:
        """(N, P) -> (N, T): sampled at temperature 1, padded after the full stop."""
        ids, done = prompts, torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(T):
            word = torch.multinomial(self(ids)[:, -1].softmax(-1), 1)[:, 0]
            ids = torch.cat([ids, torch.where(done, PAD, word)[:, None]], 1)
            done |= word == STOP
        return ids[:, prompts.shape[1] :]

    def score(self, prompts: Tensor, completions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs (N, T), entropies in nats (N, T), and the mask of the completion's own tokens (N, T)."""
        logits = self(torch.cat([prompts, completions], 1))[:, prompts.shape[1] - 1 : -1]
        logps = logits.log_softmax(-1)
        mask = (completions == STOP).cumsum(1) - (completions == STOP).long() == 0  # up to the first full stop
        entropies = -(logps.exp() * logps).sum(-1)
        return logps.gather(2, completions[:, :, None])[:, :, 0], entropies, mask


def warm_up(policy: Policy, rng: random.Random, steps: int) -> None:
    """Supervised, on answers of which many are wrong: a start that knows the form and little of the arithmetic."""
    optimizer = torch.optim.AdamW(policy.parameters(), 3e-3)
    for _ in range(steps):
        batch = [make_question(rng) for _ in range(64)]
        noisy = ["".join(str(rng.randrange(10)) if c != "." and rng.random() < 0.2 else c for c in a) for _, a in batch]
        prompts = torch.tensor([encode(q) for q, _ in batch])
        completions = torch.tensor([encode(a.ljust(T)) for a in noisy])
        logps, _, mask = policy.score(prompts, completions)
        loss = -(logps * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ---- experience -----------------------------------------------------------------------------------------------------


@dataclass
class Trajectory:
    completion: Tensor  # (T,)
    behaviour_logps: Tensor  # (T,), of the policy that produced it


class Experience:
    """Successes by question; questions by accuracy: buckets 0..K [ExGRPO, sec. 3.1]."""

    def __init__(self, k: int):
        self.k = k
        self.stored: dict[int, list[Trajectory]] = defaultdict(list)
        self.accuracy: dict[int, float] = {}
        self.retired: set[int] = set()

    def observe(self, question: int, right: list[bool]) -> None:
        """Fresh completions only: a replayed success says nothing about the policy of today."""
        self.accuracy[question] = sum(right) / len(right)
        if all(right):
            self.retired.add(question)
            self.stored.pop(question, None)

    def draw(self, n: int, rng: random.Random, mu: float = 0.5, sigma: float = 0.125) -> list[int]:
        """n questions; buckets by a Gaussian of their accuracy, inside a bucket uniform [ExGRPO, Eq. 3]."""
        buckets = defaultdict(list)
        for question in self.stored:
            buckets[math.floor(self.accuracy[question] * self.k + 0.5)].append(question)
        drawn = []
        while buckets and len(drawn) < n:
            weights = [math.exp(-((b / self.k - mu) ** 2) / (2 * sigma**2)) for b in buckets]
            bucket = rng.choices(list(buckets), weights)[0]
            drawn.append(buckets[bucket].pop(rng.randrange(len(buckets[bucket]))))
            if not buckets[bucket]:
                del buckets[bucket]
        return drawn

    def lowest_entropy(self, question: int, prompt: Tensor, policy: Policy) -> Trajectory:
        """The stored success that the policy of today is surest about [ExGRPO, sec. 3.2]."""
        candidates = self.stored[question]
        with torch.no_grad():
            completions = torch.stack([t.completion for t in candidates])
            _, entropies, mask = policy.score(prompt.expand(len(candidates), -1), completions)
        return candidates[int(((entropies * mask).sum(1) / mask.sum(1)).argmin())]


# ---- the objective --------------------------------------------------------------------------------------------------


def advantages(rewards: Tensor) -> Tensor:
    """(B, K) -> (B, K): r - mean(r) inside the group; exactly 0 without variance (Dr. GRPO)."""
    flat = rewards.max(1).values == rewards.min(1).values
    return torch.where(flat[:, None], 0.0, rewards - rewards.mean(1, keepdim=True))


def objective(logps: Tensor, behaviour: Tensor, credit: Tensor, mask: Tensor, replayed: Tensor, beta: float) -> Tensor:
    """To be maximised [ExGRPO, Eq. 4]. Fresh tokens: w A (here behaviour is the policy itself, so PPO's clip would not
    act); replayed tokens: f(w) A with f(w) = w / (w + beta), as a sigmoid of log w, which cannot overflow.

    logps, behaviour, mask: (N, T); credit, replayed: (N,).
    """
    log_w = torch.where(mask, logps - behaviour, 0.0)
    shaped = torch.sigmoid(log_w - math.log(beta))
    gain = torch.where(replayed[:, None], shaped, log_w.exp()) * credit[:, None]
    return torch.where(mask, gain, 0.0).sum() / mask.numel()  # completions x maximal length


# ---- the loop [ExGRPO, Alg. 1] ----------------------------------------------------------------------------------------


class Fresh:
    """Passes over the questions; retired ones are skipped, and none is lost to replay: one that cannot be taken now, because
    it is in this very batch, waits and comes first in the next."""

    def __init__(self, n: int, rng: random.Random):
        self.n, self.rng = n, rng
        self.order: list[int] = []
        self.waiting: list[int] = []

    def take(self, count: int, replayed: list[int], retired: set[int]) -> list[int]:
        taken: list[int] = []
        queue, self.waiting = self.waiting, []
        while len(taken) < count or queue:
            if not queue:
                self.order = self.order or self.rng.sample(range(self.n), self.n)
                queue.append(self.order.pop())
            question = queue.pop(0)
            if question in retired:
                continue
            if len(taken) == count or question in taken or question in replayed:
                self.waiting.append(question)
            else:
                taken.append(question)
        return taken


def train(
    policy: Policy, data: list[tuple[str, str]], steps: int, b: int, k: int, replay_share: float, seed: int,
    start_pass_at_1: float = 0.35,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    experience, optimizer = Experience(k), torch.optim.AdamW(policy.parameters(), 5e-4, betas=(0.9, 0.95))
    stream, started = Fresh(len(data), rng), False
    for step in range(steps):
        # plan: part of the questions is replayed, once the policy is good enough (delayed start)
        replayed = experience.draw(int(replay_share * b), rng) if started else []
        questions = stream.take(b - len(replayed), replayed, experience.retired) + replayed
        prompts = torch.tensor([encode(data[q][0]) for q in questions]).repeat_interleave(k, 0)

        # choose a trajectory for each replayed question, and generate the rest: K, or K - 1 beside a stored one
        stored = {
            i * k + k - 1: experience.lowest_entropy(q, prompts[i * k], policy)
            for i, q in enumerate(questions) if q in replayed
        }  # fmt: skip
        is_replayed = torch.zeros(b * k, dtype=torch.bool)
        is_replayed[list(stored)] = True
        completions = torch.full((b * k, T), PAD)
        completions[~is_replayed] = policy.generate(prompts[~is_replayed])
        for row, trajectory in stored.items():
            completions[row] = trajectory.completion

        # score, and credit inside each group
        texts = ["".join(WORDS[i] for i in row).strip() for row in completions.tolist()]
        right = [text == data[q][1] for q, text in zip([q for q in questions for _ in range(k)], texts, strict=True)]
        credit = advantages(torch.tensor(right, dtype=torch.float).view(b, k)).flatten()

        # learn: one forward gives the loss, and the log-probs of the fresh ones to be stored
        logps, _, mask = policy.score(prompts, completions)
        behaviour = logps.detach().clone()
        for row, trajectory in stored.items():
            behaviour[row] = trajectory.behaviour_logps
        loss = -objective(logps, behaviour, credit, mask, is_replayed, beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()

        # observe: accuracy from fresh completions, retirement, and successes become trajectories
        fresh_right = []
        for i, question in enumerate(questions):
            rows = [row for row in range(i * k, i * k + k) if row not in stored]
            experience.observe(question, [right[row] for row in rows])
            fresh_right += [right[row] for row in rows]
            known = {tuple(t.completion.tolist()) for t in experience.stored.get(question, [])}
            for row in rows:
                new = tuple(completions[row].tolist()) not in known
                if right[row] and new and question not in experience.retired:
                    experience.stored[question].append(Trajectory(completions[row], behaviour[row]))
                    known.add(tuple(completions[row].tolist()))
        pass_at_1 = sum(fresh_right) / len(fresh_right)
        started = started or pass_at_1 > start_pass_at_1
        if step % 10 == 0 or step == steps - 1:
            print(
                f"step {step:4d}  fresh Pass@1 {pass_at_1:.2f}  replayed {len(replayed):2d} of {b}  "
                f"stored {sum(map(len, experience.stored.values())):4d}  retired {len(experience.retired):4d}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--replay_share", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    questions = sorted({make_question(rng) for _ in range(1400)})
    rng.shuffle(questions)
    held_out, data = questions[:256], questions[256:]
    policy = Policy()
    warm_up(policy, rng, steps=600)

    def evaluate() -> float:
        prompts = torch.tensor([encode(q) for q, _ in held_out]).repeat_interleave(4, 0)
        texts = ["".join(WORDS[i] for i in row).strip() for row in policy.generate(prompts).tolist()]
        return sum(text == held_out[i // 4][1] for i, text in enumerate(texts)) / len(texts)

    print(f"held-out Pass@1 before: {evaluate():.3f}")
    train(policy, data, options.steps, b=32, k=8, replay_share=options.replay_share, seed=options.seed)
    print(f"held-out Pass@1 after:  {evaluate():.3f}")


if __name__ == "__main__":
    main()
