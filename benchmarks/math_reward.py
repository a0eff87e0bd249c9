"""The mathematical reward on real gold answers: what it can read, which wrong answers it accepts, how fast it is, and how it
compares with math-verify and with TRL's accuracy_reward.

    python benchmarks/math_reward.py --data DIR              # everything, about six minutes on two cores
    python benchmarks/math_reward.py --data DIR --only gold  # or near, respelled, speed, hostile
    python benchmarks/math_reward.py --data DIR --only respelled --before SRC  # and by the source of another version

DIR holds JSONL.gz files of rows with an `answer`, directly or one folder deep. Needs math-verify and TRL.
"""

import argparse
import collections
import gzip
import json
import logging
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from exgrpo.rewards import pool

try:
    from exgrpo.rewards.math.form import Form, read
    from exgrpo.rewards.math.reward import math_reward, parse_gold, strict_math_reward, verify_math
    from exgrpo.rewards.math.symbolic import parse
except ImportError:  # of a version before 0.3.0, to which --before points
    from exgrpo.rewards.math import math_reward, parse_gold, strict_math_reward, verify_math
    from exgrpo.rewards.math_form import Form, read
    from exgrpo.rewards.math_symbolic import parse

TIMED = 40  # golds a set whose answers are timed
BOX, SENTENCE = "We compute it. So we get \\boxed{%s}.", "We compute it. The answer is %s."


def load(folder: Path) -> dict[str, list[Any]]:
    sets = {}
    for path in sorted(folder.rglob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            sets[path.relative_to(folder).as_posix().removesuffix(".jsonl.gz")] = [
                json.loads(row)["answer"] for row in file
            ]
    return sets


def formula(gold: Any) -> str:
    """A gold answer as a sentence would hold it: LaTeX between dollars."""
    text = str(gold).strip()
    return f"${text}$" if "\\" in text and "$" not in text.replace("\\$", "") else text


# Gold -------------------------------------------------------------------------------------------------------------------


def leaves(form: Form) -> list[Form]:
    return [leaf for part in form.parts for leaf in leaves(part)] if form.parts else [form]


def gold(sets: dict[str, list[Any]]) -> dict[str, Any]:
    figures = {}
    for name, golds in sets.items():
        texts = [parse_gold(g) for g in golds]
        readable = [text is not None for text in texts]
        boxed = math_reward(None, [BOX % g for g in golds], golds)
        stated = math_reward(None, [SENTENCE % formula(g) for g in golds], golds)
        strict = strict_math_reward(None, [BOX % g for g in golds], golds)
        only_text = sorted(
            {
                str(g)
                for g, text in zip(golds, texts, strict=True)
                if text and any(leaf.kind == "expression" and parse(leaf.text) is None for leaf in leaves(read(text)))
            }
        )
        rest = [
            {"gold": g, "readable": ok, "boxed": b, "sentence": s}
            for g, ok, b, s in zip(golds, readable, boxed, stated, strict=True)
            if not (ok and b == s == 1.0)
        ]
        share = {
            "golds": len(golds), "readable": sum(readable) / len(golds), "boxed": boxed.count(1.0) / len(golds),
            "sentence": stated.count(1.0) / len(golds), "strict": strict.count(1.0) / len(golds),
        }  # fmt: skip
        print(name, share, "rest:", rest, "compared as text only:", len(only_text))
        figures[name] = {**share, "rest": rest, "compared_as_text_only": only_text}
    return figures


# Near misses ------------------------------------------------------------------------------------------------------------


def misses(gold: str, rng: random.Random) -> dict[str, str]:
    """Wrong answers close to a gold answer, by rule."""
    body, found = gold.strip(), {}
    digits = [m.start() for m in re.finditer(r"[0-9]", body)]
    if digits:
        at = rng.choice(digits)
        other = rng.choice([d for d in "123456789" if d != body[at]])
        found["digit changed"] = body[:at] + other + body[at + 1 :]
        at = digits[-1]
        found["digit appended"] = body[: at + 1] + rng.choice("123456789") + body[at + 1 :]
        at = next((i for i in digits if body[i] != "0"), digits[0])
        found["digit dropped"] = body[:at] + body[at + 1 :]
    signs = [m.start() for m in re.finditer(r"(?<=[0-9a-z)}\s])[-+](?=[\s0-9a-z\\(])", body)]
    if signs:
        at = rng.choice(signs)
        found["inner sign"] = body[:at] + ("-" if body[at] == "+" else "+") + body[at + 1 :]
    if (body and body[0] not in "([\\$") or body.startswith(("\\frac", "\\sqrt", "\\pi", "\\dfrac")):
        found["sign"] = body[1:].lstrip() if body[0] == "-" else f"-{body}"
    elif (match := re.search(r"(?<=[(\[,])\s*-?(?=[0-9\\])", body)) is not None:
        found["sign"] = body[: match.start()] + ("" if "-" in match[0] else "-") + body[match.end() :]
    fraction = re.sub(r"\\([dt]?)frac\{([^{}]*)\}\{([^{}]*)\}", r"\\\1frac{\3}{\2}", body, count=1)
    fraction = re.sub(r"(?<![\w}])(-?[0-9]+)/([0-9]+)", r"\2/\1", body, count=1) if fraction == body else fraction
    if fraction != body:
        found["swapped"] = fraction
    dropped = re.sub(r"(?<![0-9.^_{\\])[0-9.]+\s*(?=\\sqrt|\\pi|[a-z])", "", body, count=1)
    if dropped not in (body, ""):
        found["coefficient dropped"] = dropped
    if re.fullmatch(r"(?:\\text\{)?\(?[A-J]\)?\}?", body):
        letter = re.search(r"[A-J]", body)[0]
        for step in (1, 2, 3):
            found[f"option +{step}"] = body.replace(letter, "ABCDEFGHIJ"[("ABCDEFGHIJ".index(letter) + step) % 10])
    if re.fullmatch(r"-?[0-9]+", body):
        found["neighbour"] = str(int(body) + 1)
    parts = body.split(",")
    if len(parts) > 1:
        found["part dropped"] = ",".join(parts[:-1])
    if len(parts) > 1 and body[0] == "(" and body.count("(") == 1 and parts[0].strip(" (") != parts[1].strip(" )"):
        found["parts exchanged"] = (
            f"({parts[1].strip(' )')},{','.join([parts[0].strip(' ('), *parts[2:]])}".rstrip(")") + ")"
        )
    if body[:1] == "(" and body[-1:] == ")" and "," in body:
        found["other brackets"] = f"[{body[1:-1]}]"
    found["times ten"] = f"10({body})"
    found["plus one"] = f"{body} + 1"
    found["squared"] = f"({body})^2"
    zero, one = re.fullmatch(r"0(?:\.0)?", body) is not None, re.fullmatch(r"1(?:\.0)?", body) is not None
    return {
        rule: text
        for rule, text in found.items()
        if text.strip() not in (body, "", "-0")
        and not (one and rule == "squared")
        and not (zero and rule in ("sign", "times ten", "squared", "digit dropped"))
        and not (rule == "sign" and re.search(r"-0(?![0-9.])", text))
    }


def near(sets: dict[str, list[Any]]) -> dict[str, Any]:
    figures, accepted = {}, []
    for name, golds in sets.items():
        rng = random.Random(0)
        rows = []
        for g in golds:
            if parse_gold(g) is not None:
                rules = misses(str(g), rng)
                rows += [(rule, str(g), text) for rule, text in list(rules.items())[:5]]
        for reward, kind in ((math_reward, "accepted"), (strict_math_reward, "accepted_strict")):
            scores = reward(None, [BOX % text for _, _, text in rows], [g for _, g, _ in rows])
            right = [row for row, score in zip(rows, scores, strict=True) if score == 1.0]
            figures.setdefault(name, {"misses": len(rows)})[kind] = len(right)
            if kind == "accepted":
                accepted += [{"set": name, "rule": rule, "gold": g, "answer": text} for rule, g, text in right]
        print(name, figures[name])
    for row in accepted:
        print("  accepted:", row)
    total = sum(f["misses"] for f in figures.values())
    return {"sets": figures, "misses": total, "share": len(accepted) / total, "accepted": accepted}


# Respelled --------------------------------------------------------------------------------------------------------------

SUPERSCRIPTS = str.maketrans("0123456789-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ")
FULL_WIDTH = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(ord("!"), ord("~")) if chr(c) not in "\\{}$&^_`"})
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
DIGITS = r"(?<![0-9.,{}])([0-9]{1,3})((?:[0-9]{3})+)(?![0-9.,}])"


def dressed(gold: str) -> dict[str, str]:
    """The same answer as a model may write it, by rule; a rule that changes nothing is left out."""
    body = gold.strip().strip("$").strip().rstrip(".")
    if "$" in body or not body:
        return {}
    is_text, in_text = "\\text" in body or "\\mbox" in body, re.fullmatch(r"\\text\{([^{}]*)\}", body)
    form = read(body)
    plain = form is not None and form.kind in ("number", "expression") and not form.name and "=" not in body
    pair = form is not None and form.kind == "()" and len(form.parts) == 2 and body.startswith("(")
    number, label = plain and re.fullmatch(r"-?[0-9]+", body), re.fullmatch(r"[A-J]", body)
    found = {
        "\\color": f"\\color{{red}}{{{body}}}", "\\textcolor": f"\\textcolor{{blue}}{{{body}}}",
        "{\\color }": f"{{\\color{{red}} {body}}}", "period": f"{body}.", "dollars": f"${body}$",
        "\\displaystyle": f"\\displaystyle {body}",
        "\\left( \\right)": re.sub(r"\)", r"\\right)", re.sub(r"\(", r"\\left(", body)),
        ", \\ ": body if number else re.sub(r",\s*(?![0-9]{3}|\\!|\})", r",\\ ", body),
    }  # fmt: skip
    if label is None and not is_text:
        found |= {
            "{\\bf }": f"{{\\bf {body}}}", "\\mathbf": f"\\mathbf{{{body}}}", "\\boldsymbol": f"\\boldsymbol{{{body}}}",
            "\\, before a letter": re.sub(r"(?<=[0-9)}])\s*(?=[a-z])(?!e-?[0-9])", r"\\,", body),
            "\\; before a letter": re.sub(r"(?<=[0-9)}])\s*(?=[a-z])(?!e-?[0-9])", r"\\;", body),
            "full width": body.translate(FULL_WIDTH) if "\\" not in body and "{" not in body else body,
            "raised digits": re.sub(r"\^(?:\{(-?[0-9n]+)\}|([0-9n]))", lambda m: (m[1] or m[2]).translate(SUPERSCRIPTS), body),
            "signs": re.sub(r"\\(pi|infty|le|ge|cup|theta|alpha|cdot)(?![A-Za-z])\s*", lambda m: dict(
                pi="π", infty="∞", le="≤", ge="≥", cup="∪", theta="θ", alpha="α", cdot="·")[m[1]], body),
            "√": re.sub(r"\\sqrt\{?([0-9]+)\}?", r"√\1", body), "minus": body.replace("-", "−"),
            "\\over": re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"{\1 \\over \2}", body),
            "\\tfrac": re.sub(r"\\[dt]?frac(?=\s*\{)", r"\\tfrac", body),
            "vulgar fraction": re.sub(r"\\[dt]?frac(?:\{([123])\}\{([2345])\}|([123])([2345])(?![0-9]))", lambda m: {
                "12": "½", "13": "⅓", "14": "¼",
                "34": "¾", "23": "⅔", "15": "⅕", "25": "⅖", "35": "⅗"}.get((m[1] or m[3]) + (m[2] or m[4]), m[0]), body),
            "{,}": re.sub(DIGITS, lambda m: m[1] + re.sub(r"([0-9]{3})", r"{,}\1", m[2]), body) if "_" not in body else body,
            "thin spaces": body
            if "_" in body
            else re.sub(DIGITS, lambda m: m[1] + re.sub(r"([0-9]{3})", r"\\,\1", m[2]), body),
        }  # fmt: skip
    if plain and label is None and not is_text:
        found |= {"x =": f"x = {body}"} if "x" not in body else {}
        found |= {"f(2) =": f"f(2)={body}", "|AB| =": f"|AB|={body}"} if form.kind == "number" else {}
    if pair:
        found |= {"(x,y) =": f"(x,y)={body}"} if not form.letters else {}
        found |= {"(r,\\theta) =": f"(r,\\theta)={body}"} if not form.letters else {}
    if (base := re.fullmatch(r"([0-9]+)_\{?([2-9])\}?", body)) is not None:
        found |= {
            "(N)_b": f"({base[1]})_{{{base[2]}}}", "N base b": f"{base[1]}\\text{{ base }}{base[2]}",
            "N_word": f"{base[1]}_{{\\text{{{WORDS[int(base[2])]}}}}}", "₂": base[1] + "₀₁₂₃₄₅₆₇₈₉"[int(base[2])],
        }  # fmt: skip
    if "\\begin{pmatrix}" in body:
        for rule, opening, closing in (
            ("bmatrix", "\\begin{bmatrix}", "\\end{bmatrix}"), ("[matrix]", "\\left[\\begin{matrix}", "\\end{matrix}\\right]"),
            ("[array]", "\\left[\\begin{array}{cccc}", "\\end{array}\\right]"),
            ("(smallmatrix)", "\\left(\\begin{smallmatrix}", "\\end{smallmatrix}\\right)"),
        ):  # fmt: skip
            found[rule] = body.replace("\\begin{pmatrix}", opening).replace("\\end{pmatrix}", closing)
    if re.search(r"\^\{?\\circ\}?", body):
        found |= {
            "°": re.sub(r"\^\{?\\circ\}?", "°", body),
            "degrees": re.sub(r"\^\{?\\circ\}?$", r"\\text{ degrees}", body),
        }
        found["no degree sign"] = re.sub(r"\^\{?\\circ\}?$", "", body)
    if body.endswith("%"):
        found |= {"％": re.sub(r"\s*\\?%$", "％", body), "percent": re.sub(r"\s*\\?%$", " percent", body)}
        found |= {"no percent sign": re.sub(r"\s*\\?%$", "", body)} if "." not in body else {}
    if in_text is not None:
        found |= {
            "\\textbf": f"\\textbf{{{in_text[1]}}}",
            "\\mathrm": f"\\mathrm{{{in_text[1]}}}",
            "no \\text": in_text[1],
        }
    if re.fullmatch(r"[a-z]{2,3}", body) is not None:
        found["factors reversed"] = body[::-1]
    return {rule: text for rule, text in found.items() if text.strip() not in (body, gold.strip())}


def respellings(sets: dict[str, list[Any]], size: int) -> dict[str, list[list[str]]]:
    """Rows of set, rule, gold, answer: golds in all their respellings, and their near misses each in one of theirs."""
    rng, rows = random.Random(3), {"right": [], "wrong": []}
    for name, golds in sets.items():
        different = list(dict.fromkeys(str(g) for g in golds if parse_gold(g) is not None))
        for g in rng.sample(different, min(size, len(different))):
            rows["right"] += [[name, rule, g, text] for rule, text in dressed(g).items()]
            for rule, text in misses(g, rng).items():
                others = dressed(text)
                if others:
                    dress = rng.choice(list(others))
                    rows["wrong"].append([name, f"{rule}, {dress}", g, others[dress]])
    return rows


def judge(path: Path) -> None:
    """Score the rows of a JSON file with the source that is on the path of this process, and print the scores and times."""
    asked = json.loads(path.read_text())
    scores = {}
    for kind, rows in asked["rows"].items():
        answers, golds = [f"So \\boxed{{{text}}}." for _, _, _, text in rows], [g for _, _, g, _ in rows]
        scores[kind] = [reward(None, answers, golds) for reward in (math_reward, strict_math_reward)]
    times = {"easy": [], "all": []}
    for _ in range(3):
        for name, answers in asked["timed"].items():
            read.cache_clear()
            start = time.process_time()
            for g, text in answers:
                verify_math(text, g)
            times[name].append(time.process_time() - start)
    print(json.dumps({"scores": scores, "seconds": {name: min(found) for name, found in times.items()}}))


def judged(path: Path, source: str | None) -> dict[str, Any]:
    environment = dict(os.environ) if source is None else {**os.environ, "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, __file__, "--judge", str(path)], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def respelled_rows(sets: dict[str, list[Any]], before: str | None, size: int) -> dict[str, Any]:
    rows, timed = respellings(sets, size), samples(sets, min(size // 3, TIMED))
    easy = [
        [g, text] for g, text, _ in timed if re.search(r"boxed\{-?[0-9.,]+\}", text) and re.fullmatch(r"-?[0-9.,]+", g)
    ]
    figures: dict[str, Any] = {"right": len(rows["right"]), "wrong": len(rows["wrong"])}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps({"rows": rows, "timed": {"easy": easy, "all": [[g, text] for g, text, _ in timed]}}))
        results = {"now": judged(path, None)}
        if before is not None:
            results["before"] = judged(path, before)
            path.write_text(json.dumps({**json.loads(path.read_text()), "rows": {}}))
            again = judged(path, None)["seconds"]
            results["now"]["seconds"] = {name: min(s, again[name]) for name, s in results["now"]["seconds"].items()}
    for version_name, result in results.items():
        normal, strict = ({kind: result["scores"][kind][i] for kind in rows} for i in (0, 1))
        refused = [row for row, score in zip(rows["right"], normal["right"], strict=True) if score == 0.0]
        accepted = [row for row, score in zip(rows["wrong"], normal["wrong"], strict=True) if score == 1.0]
        by_rule = collections.Counter(rule for _, rule, _, _ in refused)
        figures[version_name] = {
            "right_refused": len(refused), "right_refused_share": len(refused) / len(rows["right"]),
            "right_refused_strict": sum(score == 0.0 for score in strict["right"]),
            "refused_by_rule": dict(by_rule.most_common()),
            "wrong_accepted": len(accepted), "wrong_accepted_strict": sum(score == 1.0 for score in strict["wrong"]),
            "accepted": accepted[:40], "refused": refused[:40] if version_name == "now" else [],
            "cpu_seconds": result["seconds"],
        }  # fmt: skip
    if before is not None:
        figures["speed_against_before"] = {
            name: results["before"]["seconds"][name] / seconds for name, seconds in results["now"]["seconds"].items()
        }
    rng = random.Random(4)
    figures["math-verify, of a sample"] = {
        kind: {"rows": len(some), ("refused" if kind == "right" else "accepted"): sum(
            (score == 1.0) == (kind == "wrong")
            for score in plain([(f"${g}$", f"$\\boxed{{{text}}}$", True) for _, _, g, text in some]))}
        for kind, some in ((kind, rng.sample(found, min(500, len(found)))) for kind, found in rows.items())
    }  # fmt: skip
    print(json.dumps(figures, indent=1, ensure_ascii=False))
    return figures


# Speed and agreement ----------------------------------------------------------------------------------------------------


def respelled(gold: str) -> str | None:
    """The same answer written another way, by rule."""
    body = gold.strip()
    form = read(body)
    if re.fullmatch(r"-?[0-9]{1,3}(?:,?[0-9]{3})*", body):
        return f"{int(body.replace(',', '')):,}.0"
    if (
        form is None
        or form.kind not in ("expression", "number")
        or form.name
        or form.unit
        or "approx" in body
        or "=" in body
    ):
        return None
    if (match := re.fullmatch(r"([0-9]+)\s*\\sqrt\{?([0-9]+)\}?", body)) is not None:
        return f"\\sqrt{{{int(match[1]) ** 2 * int(match[2])}}}"
    if (match := re.fullmatch(r"\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}", body)) is not None:
        return f"{2 * int(match[1])}/{2 * int(match[2])}"
    return None if re.search(r"[$%,]|text|circ|[A-J]|[0-9.]e[-0-9]", body) else f"\\frac{{2({body})}}{{2}}"


def samples(sets: dict[str, list[Any]], size: int) -> list[tuple[str, str, bool]]:
    """(gold, completion, right by construction) of boxed answers: as in the gold, spelled another way, two near misses."""
    rng, rows = random.Random(1), []
    for golds in sets.values():
        chosen = [str(g) for g in golds if parse_gold(g) is not None]
        for g in rng.sample(chosen, min(size, len(chosen))):
            other = respelled(g)
            answers = [(g.strip().rstrip("."), True)] + [(text, False) for text in list(misses(g, rng).values())[:2]]
            for text, right in answers + ([(other, True)] if other else []):
                rows.append((g, f"So \\boxed{{{text}}}." if "$" in text else f"So $\\boxed{{{text}}}$.", right))
    rng.shuffle(rows)
    return rows


def plain(rows: list[tuple[str, str, bool]]) -> list[float]:
    """math-verify as its README has it."""
    from math_verify import parse as mv_parse
    from math_verify import verify

    return [float(verify(mv_parse(g), mv_parse(text))) for g, text, _ in rows]


def trl(rows: list[tuple[str, str, bool]], wrap: bool = False) -> list[float | None]:
    from trl.rewards import accuracy_reward

    golds = [f"${g}$" if wrap and "$" not in g else g for g, _, _ in rows]
    return accuracy_reward([[{"role": "assistant", "content": text}] for _, text, _ in rows], golds)


def differences(ours: list, theirs: list, rows: list) -> dict[str, Any]:
    kinds: dict[str, list] = collections.defaultdict(list)
    for a, b, (g, text, right) in zip(ours, theirs, rows, strict=True):
        if a != b:
            said = "None" if b is None else "right" if b else "wrong"
            kinds[f"they say {said}, we {'right' if a else 'wrong'}, made {'right' if right else 'wrong'}"].append(
                [g, text]
            )
    return {
        "agreement": sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(rows),
        "differences": {kind: {"count": len(found), "first": found[:5]} for kind, found in sorted(kinds.items())},
    }


def speed(sets: dict[str, list[Any]], size: int) -> dict[str, Any]:
    rows = samples(sets, size)
    golds, texts = [g for g, _, _ in rows], [text for _, text, _ in rows]
    easy = [
        i
        for i, row in enumerate(rows)
        if re.search(r"boxed\{-?[0-9.,]+\}", row[1]) and re.fullmatch(r"-?[0-9.,]+", row[0])
    ]
    math_reward(None, ["\\boxed{\\sqrt{12}}"], ["2\\sqrt{3}"])  # starts the pool
    figures: dict[str, Any] = {"samples": len(rows), "easy": len(easy)}

    def timed(name: str, function: Any, count: int) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        result = function()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        figures[name] = {"seconds": seconds, "per_second": count / seconds, "cpu_seconds_of_this_process": cpu}
        print(name, figures[name])
        return result

    ours = timed("math_reward", lambda: math_reward(None, texts, golds), len(rows))
    strict = timed("strict_math_reward", lambda: strict_math_reward(None, texts, golds), len(rows))
    timed("math_reward, again", lambda: math_reward(None, texts, golds), len(rows))
    alone = timed(
        "math_reward, one process", lambda: [verify_math(t, g) for t, g in zip(texts, golds, strict=True)], len(rows)
    )
    read.cache_clear()
    timed(
        "math_reward, easy answers",
        lambda: math_reward(None, [texts[i] for i in easy], [golds[i] for i in easy]),
        len(easy),
    )
    verified = timed("math-verify", lambda: plain(rows), len(rows))
    timed("math-verify, easy answers", lambda: plain([rows[i] for i in easy]), len(easy))
    by_trl = timed("accuracy_reward", lambda: trl(rows), len(rows))
    wrapped = timed("accuracy_reward, gold in dollars", lambda: trl(rows, wrap=True), len(rows))
    made = [float(right) for _, _, right in rows]
    figures["same_with_and_without_pool"] = ours == alone
    for name, scores in (("math_reward", ours), ("strict_math_reward", strict), ("math-verify", verified),
                         ("accuracy_reward", by_trl), ("accuracy_reward, gold in dollars", wrapped)):  # fmt: skip
        figures[name]["right_scored_1"] = sum(s == 1.0 for s, m in zip(scores, made, strict=True) if m) / sum(made)
        figures[name]["wrong_scored_1"] = sum(
            s == 1.0 for s, m in zip(scores, made, strict=True) if not m
        ) / made.count(0.0)
        print(name, figures[name])
    figures["against"] = {
        "math-verify": differences(ours, verified, rows), "accuracy_reward": differences(ours, by_trl, rows),
        "accuracy_reward, gold in dollars": differences(ours, wrapped, rows),
    }  # fmt: skip
    return figures


# Hostile completions ----------------------------------------------------------------------------------------------------

CANARY = "exgrpo_canary"


def children() -> list[tuple[int, float]]:
    """Processes that this one started and that are there, and the peak of their own memory in MB, from /proc.

    The usage that the system reports of ended children holds the memory of this process before they began.
    """
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:  # it ended meanwhile
            continue
        if int(facts["PPid"]) == os.getpid() and "VmHWM" in facts:
            found.append((int(facts["Pid"]), int(facts["VmHWM"].split()[0]) / 1024))
    return found


def hostile(count: int) -> dict[str, Any]:
    rng = random.Random(2)
    path = Path(os.environ.get("TMPDIR", "/tmp")) / CANARY
    path.unlink(missing_ok=True)
    run = f"__import__('pathlib').Path('{path}').write_text('x')"
    golds = ["2\\sqrt{3}", "x^2+1", "5", "(1,2)", "\\frac{1}{2}", "2^{10}x", "[0,1)", "y=2x+1", "\\binom{n}{2}", "\\pi"]

    def tower() -> str:
        base = rng.choice(["9", "x", "\\pi", "10", "n"])
        return rng.choice(["^{", "**(", "^("]).join([base] * rng.randint(2, 40)) + rng.choice(["", "}" * 40, ")" * 40])

    def nested() -> str:
        opening, closing = rng.choice(
            ["{}", "()", "[]", ["\\frac{", "}{2}"], ["\\sqrt{", "}"], ["\\left(", "\\right)"]]
        )
        depth = rng.choice([10, 100, 1000, 100_000])
        return opening * depth + "x" + closing * rng.choice([0, depth, depth - 1])

    def large() -> str:
        return rng.choice(["9" * 10**6, "1/" * 10**5 + "1", "(9999999!)!", "9999^{9999}", "\\binom{999999}{499999}",
            "9!!!!!!!!",
                           "2^{99999999}", "0." + "3" * 10**6, "1e999999999", "\\frac{1}{10^{99999}}", "99999999999!",
                           "(x+y+z+1)^{99999}", "\\sqrt{x+1}^{9999}", "x^{y^{z^{x^{y}}}}",
                           "\\exp{\\exp{\\exp{99}}}"])  # fmt: skip

    def injected() -> str:
        return rng.choice([run, f"\\text{{{run}}}", f"\\operatorname{{{run}}}", f"exec(\"{run}\")", f"$({run})$",
            "os.system('x')",
                           f"x_{{{run}}}", "\\operatorname{eye}(10^{9})", "\\operatorname{zeros}(99999,99999)", "lambda: 0",
                           "\\sum_{n=1}^{999999999} n!", "\\int_0^1 x^{x^{x}} dx", "\\prod_{i=1}^{99999} i^i",
                           "\\det{A}",
                           "\\begin{pmatrix}" + "1&" * 5000 + "\\end{pmatrix}", "{{7*7}}", "%s%s%n",
                           "\\input{/etc/passwd}"])  # fmt: skip

    def control() -> str:
        alphabet = "\x00\x01\x07\x1b\x7f\u202e\u202d\u200f\u2066\ud800\udfff\ufffe\u0300٣५²½∞" + "x12+-\\{}()$"
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 400)))

    def incomplete() -> str:
        whole = rng.choice(
            [
                "\\frac{1}{2}",
                "\\sqrt[3]{x+1}",
                "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
                "\\left(1,\\frac{1}{2}\\right]",
            ]
        )
        return whole[: rng.randint(1, len(whole) - 1)]

    def noise() -> str:
        pieces = ["\\frac", "\\sqrt", "{", "}", "(", ")", "^", "_", "x", "y", "1", "9", "!", "\\binom", "+", "-", "=",
            ",", "\\pm",
                  "|", "\\cup", "[", "]", "\\{", "\\}", "\\text{", "\\sin", "\\log", "/", "e", "i", " "]  # fmt: skip
        return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 120)))

    makers = [tower, nested, large, injected, control, incomplete, noise]
    wrappers = [
        "\\boxed{%s}",
        "The answer is %s.",
        "so $x = %s$",
        "%s",
        "#### %s",
        "\\boxed{%s",
        "<think>%s</think>\\boxed{%s}",
    ]
    texts, answers, kinds = [], [], []
    for i in range(count):
        make = makers[i % len(makers)]
        wrapper = rng.choice(wrappers)
        texts.append(wrapper.replace("%s", make()))
        answers.append(rng.choice(golds))
        kinds.append(make.__name__)
    pool.configure(time_limit=2.0)
    start, slowest, scores = time.perf_counter(), 0.0, []
    for at in range(0, count, 100):
        began = time.perf_counter()
        scores += math_reward(None, texts[at : at + 100], answers[at : at + 100])
        slowest = max(slowest, time.perf_counter() - began)
    seconds = time.perf_counter() - start
    workers = [peak for _, peak in children()]
    pool.close()
    right = [[kind, text[:120], g] for kind, text, g, s in zip(kinds, texts, answers, scores, strict=True) if s != 0.0]
    figures = {
        "completions": count, "seconds": seconds, "slowest_batch_of_100": slowest, "executed": path.exists(),
        "scored_right": len(right),
        "first_right": right[:10], "children_left": len(children()),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "workers": len(workers),
        "peak_memory_of_a_worker_mb": max(workers, default=None),
    }  # fmt: skip
    print(figures)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with *.jsonl.gz files")
    parser.add_argument("--only", choices=("gold", "near", "respelled", "speed", "hostile"), nargs="*", default=None)
    parser.add_argument("--before", default=None, help="source folder of an earlier version, to be compared with")
    parser.add_argument("--judge", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=120, help="golds a set in the comparison of speed")
    parser.add_argument("--hostile", type=int, default=10_000, help="number of hostile completions")
    arguments = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    if arguments.judge is not None:
        judge(arguments.judge)
        return
    from machine import RESULTS, save  # not for --judge: another version may not have what it needs

    sets = load(arguments.data) if arguments.data else {}
    if not sets:
        sys.exit(f"{arguments.data} has no *.jsonl.gz files")
    parts = {
        "gold": lambda: gold(sets), "near": lambda: near(sets),
        "respelled": lambda: respelled_rows(sets, arguments.before, arguments.size),
        "speed": lambda: speed(sets, arguments.size),
        "hostile": lambda: hostile(arguments.hostile),
    }  # fmt: skip
    chosen = arguments.only or list(parts)
    path = RESULTS / "math_reward.json"
    before = json.loads(path.read_text()) if arguments.only and path.exists() else {}
    kept = {name: before[name] for name in parts if name in before}
    done = {name: parts[name]() for name in chosen}
    versions = {name: version(name) for name in ("math-verify", "latex2sympy2_extended", "sympy")}
    print(save("math_reward", "python benchmarks/math_reward.py --data DIR", {"verifiers": versions, **kept, **done}))


if __name__ == "__main__":
    main()
