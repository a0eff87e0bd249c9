"""A study's results as one page with tables and pictures."""

from pathlib import Path
from typing import Any

from ...report.table import markdown_table
from .pictures import draw_differences, draw_setting
from .recipe_regime import RecipeRegime
from .results import write_whole
from .study_file import file_name
from .summary import Findings, answer_rows, arm_rows, difference_rows, load_findings
from .sweep import Sweep, draw_sweeps

EXPLANATION = """\
Pass@1, Pass@k and greedy accuracy are of held-out questions. *entropy*: of the policy near the end, nats a token. *tokens to
baseline*: median share of the baseline's tokens after which an arm has the baseline's final Pass@1 of the same seed (in how
many seeds it gets there); without seeds in which the baseline collapsed, or ended above its start by no more than noise.
*collapsed*: seeds whose final Pass@1 is at most half the best on the curve, or below the start's, by more than three
standard errors. *CPU s*: processor seconds of training.
*retired*: questions out of replay at the end. *replayed*: share of the groups with a
stored completion. *tried*: settings that were tried to arrive at this arm. Differences are in points
(hundredths): means over pairs of the same seed with Student's t interval at 95 %; *bootstrap* is the percentile interval of
the Pass@1 difference, too narrow with few pairs.
*valid*: share of the right held-out samples that are right by right reasoning. *different*: different valid answers among the
samples of a question. *stored, valid* and *replayed, valid*: the same share of what was stored and replayed. *different picks*:
different trajectories over all picks. *Pass@1 at equal time*: at the processor time that the quicker of the two arms needed.
*at its own rate*: each seed at the learning rate with the highest mean Pass@1 of the other seeds; a rate *suits* an arm that
has at least 80 % of its best mean there. No interval is given for fewer than five pairs."""


def write_report(folder: Path, output_dir: Path) -> list[Path]:
    """Write `report.md` and its pictures; returns their paths."""
    found = load_findings(folder)
    output_dir.mkdir(parents=True, exist_ok=True)
    parts, written = [_head(found, folder)], []
    if (path := draw_differences(found, output_dir / "differences.png")) is not None:
        written.append(path)
        parts.append(f"![Paired differences to {found.study.baseline}]({path.name})")
    for setting in found.study.settings:
        if not any(name == setting.name for name, _, _ in found.runs):
            parts.append(f"## {setting.name}\n\nNo run is done.")
            continue
        path = draw_setting(found, setting.name, output_dir / f"{file_name(setting.name)}.png")
        written.append(path)
        parts.append(f"## {setting.name}\n\n{regime_line(found, setting.name)}")
        if (sweep := Sweep.of_arms(found, setting.name)) is not None and sweep.seeds:
            picture = draw_sweeps(
                [sweep], list(sweep.runs), output_dir / f"{file_name(setting.name)}-learning-rates.png"
            )
            written.append(picture)
            parts += [markdown_table(sweep.rows()), f"![Pass@1 over the learning rate, {setting.name}]({picture.name})"]
        parts.append(markdown_table(arm_rows(found, setting.name)))
        if rows := difference_rows(found, setting.name):
            parts.append(markdown_table(rows))
        else:
            parts.append("No pair of arms has five common seeds: no differences.")
        parts.append(markdown_table(answer_rows(found, setting.name)))
        parts.append(f"![Learning curves of {setting.name}]({path.name})")
    report = output_dir / "report.md"
    write_whole(report, "\n\n".join([*parts, EXPLANATION]) + "\n")
    return [report, *written]


def regime_line(found: Findings, setting: str) -> str:
    """Describe the sizes of a setting in a sentence."""
    regime = found.setting(setting).regime
    if isinstance(regime, RecipeRegime):
        return recipe_line(regime)
    knobs = "".join(f", {name} {value}" for name, value in regime.knobs.items())
    return (
        f"Task {regime.task}{knobs}: {regime.train_questions:,} training questions, {regime.eval_questions:,} held out; "
        f"{regime.questions_per_step} questions x {regime.num_generations} completions a step, learning rate "
        f"{regime.learning_rate:g}, the generated tokens of {regime.steps} on-policy steps."
    )


def recipe_line(regime: RecipeRegime) -> str:
    """Describe model, questions and budget of a recipe in a sentence."""
    recipe, [(kind, size)] = regime.recipe, regime.budget_of.items()
    questions = recipe.get("task") or recipe.get("dataset_name")
    budget = (
        f"the tokens of {size:,g} steps, as if all answers were right"
        if kind == "right_answers"
        else f"{size:,g} {kind}"
    )
    return (
        f"Model {recipe.get('model_name_or_path') or 'the built-in tiny policy'}, questions {questions}, learning rate "
        f"{recipe.get('learning_rate', 'default')}; {budget} a run; held out: at most {regime.eval_questions:,} questions x "
        f"{regime.num_samples} samples at temperature {regime.eval_temperature:g}."
    )


def _head(found: Findings, folder: Path) -> str:
    about = found.about
    machine: dict[str, Any] = {
        "machine": f"{about.get('cores')} cores, {about.get('processor')}",
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version),
        "date": about.get("date"),
        "command": f"`{about['command']}`",
        "results": f"`{folder.name}/results.jsonl`",
    }
    warning = "**A shortened run: it shows that the study runs, and nothing else.**\n\n" if found.short else ""
    return f"# {found.study.title}\n\n{warning}" + "\n".join(f"- {name}: {value}" for name, value in machine.items())
