"""A run whose every text wants to be something else: HTML, a script, a template, another direction of writing."""

import json
from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from exgrpo.evaluation.store import Answer, Store
from exgrpo.experience.events import Admitted, Observed, Planned, PlannerState, Replayed, Retired, Trained
from exgrpo.experience.trajectory import Trajectory
from exgrpo.log import LogWriter, QuestionRecord
from tests.support.logs import ORIGIN

CORPUS = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=2</script>",
    "<img src=x onerror=window.pwned=3>",
    '"><svg onload=window.pwned=4>',
    "javascript:window.pwned=5",
    "{{constructor.constructor('window.pwned=6')()}} ${window.pwned=6} <%= 6 %>",
    "\u202eright to left\u202c and \u2066isolated\u2069, \u200fmarked",
    "nul \x00, escape \x1b[31m, bell \x07, delete \x7f, separator \u2028 end",
    "lone \ud800 surrogate",
    "<!--<script> --> ]]> &lt;b&gt; \\u003cscript\\u003e",
    "' OR 1=1; DROP TABLE question; --",
    "a" * 5000,
    "ﷺ" * 200 + "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "../../etc/passwd",
)
NAME = "<img src=x onerror=window.pwned=7>"


class Questions:
    keys = tuple(f"{i:032x}" for i in range(len(CORPUS)))

    def record(self, i):
        text = CORPUS[i]
        line = text if len(text) > 4000 else text + " "
        prompt = json.dumps([{"role": NAME, "content": line * (1 if len(text) < 4000 else 220)}])  # one of 1 MB
        return QuestionRecord(self.keys[i], i, prompt, json.dumps({"answer": text, NAME: text}), NAME)


def make(folder):
    """Write it into a folder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [text.encode("utf-8", "replace").decode() for text in CORPUS]
    vocabulary = {text: i for i, text in enumerate(plain)} | {"[UNK]": len(plain)}
    log = LogWriter(folder / "experience.db", Questions())
    log.add_tokenizer("tok", Tokenizer(WordLevel(vocabulary, unk_token="[UNK]")).to_str())
    rewards = json.dumps([[{"name": NAME, "version": NAME, "weight": 1.0}], {"decides": NAME, "above": 0.5}])
    options = json.dumps({"preset": NAME, "mixing": "share", "question_choice": NAME, NAME: NAME, "sigma": NAME})
    log.begin(
        replace(
            ORIGIN, model=NAME, tokenizer="tok", rewards=rewards, options=options, versions=json.dumps({NAME: NAME})
        )
    )
    n, serial = len(CORPUS), 0
    for step in range(3):
        log(Planned(step, step, n, n if step else 0, 0, None if step else f"{NAME}: {plain[6]}"))
        questions = np.arange(n)
        right = (questions + step) % 4
        log(
            Observed(
                step, step, questions, right, np.full(n, 4), np.zeros(n, int), np.full(n, step > 0), np.full(n, 0.4)
            )
        )
        stored = [
            Trajectory(q, np.array([q, (q + 1) % n]), -np.ones(2, np.float32), np.ones(1), step) for q in range(n)
        ]
        if step:
            log(Replayed(step, step, questions, np.arange(serial - n, serial), "plan", 1, 0.5))
            log(Trained(step, step, questions, np.arange(serial - n, serial), np.full(n, 0.1), np.full(n, 0.9)))
        log(Admitted(np.arange(serial, serial + n), tuple(stored)))
        log.put_many(list(range(serial, serial + n)), stored)
        serial += n
        if step == 2:
            log(Retired(step, step, questions[:2]))
        log.commit(PlannerState(generation=step + 1, step=step + 1, gate_open=step > 0, pass_at_1=0.4))
    log.close()
    rows = [
        {"step": i, "loss": 0.1, "reward": 0.5, f"replay/time/{NAME}": 1.0, f"eval_reward_{NAME}": 0.5}
        for i in range(4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def make_evaluation(folder, models=2):
    """The same texts as questions, golds, completions, names and settings of an evaluation; returns the folder."""
    plain = [text.encode("utf-8", "replace").decode() for text in CORPUS]
    store = Store(folder / "evaluation.db")
    store.add_benchmark(NAME, {"num_samples": 4, "verifiers": [NAME, "strict"], NAME: plain[6]})
    asked = store.add_questions(
        NAME,
        [([{"role": NAME, "content": text if len(text) < 4000 else text * 200}], text, {NAME: text}) for text in plain],
    )
    for number in range(models):
        model = store.add_model(f"{plain[number]} {NAME}", {"chat_template": NAME, NAME: plain[7]})
        store.add(
            model,
            [
                Answer(one.id, sample, plain[(place + sample) % len(plain)], 3, NAME,
                       {NAME: float((place + sample + number) % 3 == 0), "strict": None if sample else 1.0})
                for place, one in enumerate(asked) for sample in range(4)
            ],
        )  # fmt: skip
    return folder
