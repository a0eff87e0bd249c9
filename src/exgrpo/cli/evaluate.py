"""`exgrpo evaluate`: how good models are on benchmarks or any file of questions, in this process or at an address."""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, DatasetError
from .environment import installed_versions, require
from .numbers import at_least, between
from .parser import Parser

DEFAULT_FOLDER = Path("exgrpo-evaluate")
DATABASE = "evaluation.db"
PROBE_TOKENS = 128
EPILOG = """\
examples:
  exgrpo evaluate Qwen/Qwen2.5-Math-7B outputs/run-1 --benchmarks math500 aime24
  exgrpo evaluate outputs/run-1 --data test.jsonl --reward_funcs numeric_reward
  exgrpo evaluate served --base_url http://localhost:8000/v1 --benchmarks arc_c
"""


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="exgrpo evaluate",
        description="Sample completions from one or several models, score them as training does, and report how good the "
        "models are and whether they differ. Completions are kept in one SQLite file; started again, the command resumes.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL",
        help="a folder, a hub name, a checkpoint or an adapter; with --base_url, the name that the server knows",
    )  # fmt: skip
    what = parser.add_argument_group("questions")
    what.add_argument("--benchmarks", nargs="+", default=[], metavar="NAME", help="aime24 aime25 amc23 math500 minerva "
                      "olympiadbench arc_c gpqa_diamond mmlu_pro")  # fmt: skip
    what.add_argument(
        "--benchmark_dir", type=Path, metavar="DIR", help="read NAME.jsonl from this folder instead of the hub"
    )
    what.add_argument("--data", metavar="FILE", help="questions as for exgrpo train: a file, a folder, or a hub name")
    what.add_argument("--split", default="test", help="split of --data (default: test)")
    what.add_argument("--question_column", metavar="NAME", help="column of the question (default: found by its name)")
    what.add_argument("--answer_column", metavar="NAME", help="column of the gold answer (default: found by its name)")
    what.add_argument(
        "--keep_columns",
        nargs="+",
        default=[],
        metavar="NAME",
        help="further columns of --data that a reward function reads",
    )
    what.add_argument(
        "--prompt_template", metavar="TEXT", help="text around the question, with {question} in its place"
    )
    what.add_argument(
        "--reward_funcs", nargs="+", metavar="NAME",
        help="the reward function that decides, then others to compare (default: math_reward, or choice_reward for choices, "
        "beside strict_math_reward and math_verify)",
    )  # fmt: skip
    what.add_argument(
        "--system_prompt", metavar="TEXT", help="first message (default: the benchmark's own; '' for none)"
    )
    what.add_argument(
        "--limit", type=at_least(1), metavar="N", help="take only the first N questions of each benchmark"
    )
    what.add_argument("--plain", action="store_true", help="send plain text even if the model has a chat template")
    how = parser.add_argument_group("sampling")
    how.add_argument(
        "--num_samples",
        type=at_least(1),
        metavar="K",
        help="completions per question (default: the paper's, 32 for AIME and AMC, else 1)",
    )
    how.add_argument(
        "--temperature",
        type=between(0.0),
        default=0.6,
        metavar="T",
        help="sampling temperature; 0 is greedy (default: 0.6)",
    )
    how.add_argument("--top_p", type=between(0.0, 1.0), default=1.0, metavar="P", help="nucleus sampling (default: 1)")
    how.add_argument(
        "--max_tokens", type=at_least(1), default=8192, metavar="N", help="most tokens per completion (default: 8192)"
    )
    how.add_argument("--seed", type=at_least(0), default=0, metavar="S", help="sampling seed (default: 0)")
    how.add_argument(
        "--batch_size", type=at_least(1), default=64, metavar="N", help="completions generated at once (default: 64)"
    )
    how.add_argument("--dtype", default="auto", help="precision of the weights (default: as stored)")
    server = parser.add_argument_group("server")
    server.add_argument(
        "--base_url", metavar="URL", help="address of an OpenAI-compatible server, as http://localhost:8000/v1"
    )
    server.add_argument(
        "--api_key_env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="environment variable that holds the key, if any",
    )
    server.add_argument("--parallel", type=at_least(1), default=16, metavar="N", help="requests at once (default: 16)")
    server.add_argument(
        "--timeout", type=between(0.0), default=600.0, metavar="S", help="seconds to wait for an answer (default: 600)"
    )
    seen = parser.add_argument_group("contamination")
    seen.add_argument(
        "--training_data", nargs="+", default=[], metavar="FILE", help="files that the models were trained on"
    )
    seen.add_argument(
        "--experience", nargs="+", type=Path, default=[], metavar="RUN", help="runs whose questions the models saw"
    )
    seen.add_argument(
        "--probe", action="store_true", help="ask the model to complete each question from its first 60 %%, greedily"
    )
    parser.add_argument(
        "--output_dir", type=Path, default=DEFAULT_FOLDER, help=f"folder of the results (default: {DEFAULT_FOLDER})"
    )
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = make_parser().parse_args(argv)
    if not args.benchmarks and args.data is None:
        raise ConfigurationError("There are no questions: set --benchmarks or --data.")
    if args.top_p == 0:
        raise ConfigurationError("--top_p must be above 0.")
    require("datasets", "trl", "An evaluation")
    from ..evaluation.store import Store

    benchmarks = [*map(_benchmark(args), args.benchmarks), *([_own_file(args)] if args.data is not None else [])]
    store = Store(args.output_dir / DATABASE)
    stamp = store.once("began", str(int(time.time())))
    command = shlex.join(["exgrpo", "evaluate", *argv])
    for name in args.models:
        _evaluate(args, name, benchmarks, store)
    return _report(args, store, benchmarks, stamp, command)


# Questions --------------------------------------------------------------------------------------------------------------


class Asked:
    """A benchmark as it is asked here: its name, questions, verifiers, system prompt and samples."""

    def __init__(self, name: str, items: Sequence[Any], source: str, rewards: Sequence[str], system: str, samples: int):
        from ..evaluation.scoring import Verifiers

        self.name, self.items, self.source, self.system, self.samples = name, items, source, system, samples
        self.rewards, self.verifiers = list(rewards), Verifiers.named(rewards)

    def settings(self, plain: bool) -> dict[str, Any]:
        return {
            "source": self.source,
            "verifiers": self.rewards,
            "system_prompt": self.system,
            "num_samples": self.samples,
            "plain": plain,
        }

    def rows(self, plain: bool) -> list[tuple[Any, str, Any]]:
        """Return (prompt, gold, columns) of each question."""
        return [(self._prompt(item.question, plain), item.answer, item.columns) for item in self.items]

    def _prompt(self, question: Any, plain: bool) -> Any:
        from ..evaluation.sampling import as_text

        if not isinstance(question, str):
            return question
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": question}]
        return as_text(messages) if plain else messages


def _benchmark(args: argparse.Namespace) -> Callable[[str], Asked]:
    from ..evaluation.benchmarks import BENCHMARKS, load_benchmark
    from ..evaluation.scoring import default_verifiers

    def load(name: str) -> Asked:
        items = load_benchmark(name, args.benchmark_dir, args.limit)
        benchmark = BENCHMARKS[name]
        rewards = args.reward_funcs or default_verifiers(benchmark.reward)
        system = benchmark.instruction if args.system_prompt is None else args.system_prompt
        source = benchmark.hub if args.benchmark_dir is None else str(args.benchmark_dir)
        return Asked(name, items, source, rewards, system, args.num_samples or benchmark.samples)

    return load


def _own_file(args: argparse.Namespace) -> Asked:
    from ..evaluation.benchmarks import Item
    from ..evaluation.scoring import default_verifiers
    from ..tasks.datasets import load_questions

    dataset = load_questions(
        args.data, split=args.split, question_column=args.question_column, answer_column=args.answer_column,
        prompt_template=args.prompt_template, limit=args.limit, keep_columns=args.keep_columns,
    )  # fmt: skip
    items = [Item(row["prompt"], row["answer"], {name: row[name] for name in args.keep_columns}) for row in dataset]
    name = Path(args.data).name.partition(".")[0]
    rewards = args.reward_funcs or default_verifiers("math_reward")
    return Asked(name, items, args.data, rewards, args.system_prompt or "", args.num_samples or 1)


# Models -----------------------------------------------------------------------------------------------------------------


def _evaluate(args: argparse.Namespace, name: str, benchmarks: Sequence[Asked], store: Any) -> None:
    from ..evaluation.sampling import Sampling

    source, begun = _source(args, name)
    common = {"temperature": args.temperature, "top_p": args.top_p, "max_tokens": args.max_tokens, "seed": args.seed}
    model = store.add_model(name, {**common, **source.settings()})
    _say(f"{name}: temperature {args.temperature:g}, top_p {args.top_p:g}, at most {args.max_tokens:,} tokens, "
         f"{'plain text' if args.plain else 'messages'}")  # fmt: skip
    for asked in benchmarks:
        store.add_benchmark(asked.name, asked.settings(args.plain))
        questions = store.add_questions(asked.name, asked.rows(args.plain))
        sampling = Sampling(num_samples=asked.samples, **common)
        done, total = store.done(model), len(questions) * asked.samples
        ids = {question.id for question in questions}
        here = sum(question in ids for question, _ in done)
        _say(
            f"{name}, {asked.name}: {len(questions):,} questions x {asked.samples}, {total - here:,} completions to do"
        )
        answers = source.answers(questions, sampling, done)
        for batch in asked.verifiers.scored(_told(answers, here, total), questions, begun):
            store.add(model, batch)


def _source(args: argparse.Namespace, name: str) -> tuple[Any, Callable[[Any], bool]]:
    """Return where completions come from, and which prompts begin a thought."""
    from ..rewards.completion import opens_thinking

    if args.base_url is not None:
        from ..evaluation.endpoint import Endpoint

        key = os.environ.get(args.api_key_env)
        endpoint = Endpoint(name, args.base_url, api_key=key, parallel=args.parallel, timeout=args.timeout)
        return endpoint, lambda prompt: isinstance(prompt, str) and opens_thinking(prompt)
    require("transformers", "trl", "An evaluation in this process")
    from ..evaluation.local_model import LocalModel

    model = LocalModel(name, args.dtype, args.batch_size)
    return model, model.begins_thought


def _told(answers: Iterator[list[Any]], done: int, total: int) -> Iterator[list[Any]]:
    """Yield the batches, with a progress line now and then on stderr."""
    said, began, first = time.monotonic(), time.monotonic(), done
    for batch in answers:
        yield batch
        done += len(batch)
        if time.monotonic() - said > 30:
            said = time.monotonic()
            left = (said - began) / (done - first) * (total - done)
            sys.stderr.write(f"  {done:,} of {total:,} completions, about {left / 60:.0f} min left\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# What came of it --------------------------------------------------------------------------------------------------------


def _report(args: argparse.Namespace, store: Any, benchmarks: Sequence[Asked], stamp: str, command: str) -> int:
    from ..evaluation.results_page import results_page, table_rows
    from ..evaluation.shared_results import shared_results
    from ..evaluation.summary import disagreements, summarize, told
    from ..report.files import write_whole
    from ..report.table import markdown_table

    summary = summarize(store)
    if args.training_data or args.experience:
        summary["contamination"] = _contamination(args, benchmarks)
    if args.probe:
        summary["recalled"] = {name: _recalled(args, name, benchmarks) for name in args.models}
    _say(markdown_table(table_rows(summary), digits=1))
    for row in summary["differences"]:
        _say(told(row))
    files = {
        "results.json": json.dumps(summary, indent=1),
        "report.html": results_page(summary, disagreements(store), command),
    }
    for model, record in shared_results(summary, installed_versions(), stamp, command).items():
        files[f"every-eval-ever-{_file_name(model)}.json"] = json.dumps(record, indent=1)
    for name, text in files.items():
        write_whole(args.output_dir / name, text + "\n")
        _say(f"wrote {args.output_dir / name}")
    _say(f"The completions: exgrpo view {shlex.quote(str(args.output_dir))}")
    return 0


def _file_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in ".-_" else "-" for c in model).strip("-.")


def _contamination(args: argparse.Namespace, benchmarks: Sequence[Asked]) -> dict[str, Any]:
    """Report by benchmark how many questions overlap with the training texts, which verbatim, and which ones."""
    from ..evaluation.contamination import overlaps

    texts = list(_training_texts(args))
    found = {}
    for asked in benchmarks:
        shares = overlaps([_text(item.question) for item in asked.items], texts)
        found[asked.name] = {
            "questions": len(shares),
            "exact": [i for i, overlap in enumerate(shares) if overlap.exact],
            "much": [i for i, overlap in enumerate(shares) if overlap.is_much],
        }
    return found


def _text(question: Any) -> str:
    return question if isinstance(question, str) else " ".join(str(message["content"]) for message in question)


def _training_texts(args: argparse.Namespace) -> Iterator[str]:
    from ..log import log_in
    from ..log.reader import LogReader
    from ..tasks.datasets import load_questions

    for source in args.training_data:
        yield from (_text(row["prompt"]) for row in load_questions(source, drop_incomplete=True, conversational=True))
    for run in args.experience:
        path = log_in(run) if run.is_dir() else run
        if path is None or not path.exists():
            raise DatasetError(f"{run} holds no experience log.")
        with LogReader(path) as reader:
            yield from (record.prompt for _, record in reader.questions() if record.prompt)


def _recalled(args: argparse.Namespace, name: str, benchmarks: Sequence[Asked]) -> dict[str, Any]:
    """Report by benchmark how much of a question's rest a model writes by heart: mean share, and how often all."""
    from ..evaluation.contamination import recalled, split
    from ..evaluation.sampling import Sampling
    from ..evaluation.store import StoredQuestion

    source, _ = _source(args, name)
    sampling = Sampling(1, 0.0, 1.0, min(PROBE_TOKENS, args.max_tokens), args.seed)
    found = {}
    for asked in benchmarks:
        parts = [split(_text(item.question)) for item in asked.items]
        rows = [StoredQuestion(i, asked.name, i, first, "", {}) for i, (first, _) in enumerate(parts)]
        answers = {a.question: a.text for batch in source.answers(rows, sampling, set()) for a in batch}
        shares = [recalled(rest, answers[i]) for i, (_, rest) in enumerate(parts) if rest]
        found[asked.name] = {
            "questions": len(shares),
            "mean": sum(shares) / len(shares) if shares else None,
            "whole": sum(share == 1.0 for share in shares),
        }
    return found
