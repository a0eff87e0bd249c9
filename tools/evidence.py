"""Make the pages "Evidence" and "Evidence: the tables" from their templates and the stored results: every figure of them comes
from here; and those of `exgrpo presets --advise`.

    python tools/evidence.py --write    # after a study has run, or a template has changed
    python tools/evidence.py --check    # part of `make check`

To add a study: its tables and command go to `benchmarks/evidence-tables.template.md`, under a heading of their own; what it
found goes to `benchmarks/evidence.template.md`, with a link to that heading. In both, `{{ ... }}` stands
for what the results say:

    {{ command STUDY }}                               how it was made: commands, size, time
    {{ arms STUDY SETTING [ARM ...] }}                table of means
    {{ differences STUDY SETTING [ARM ...] }}         table of paired differences
    {{ answers STUDY SETTING [ARM ...] }}             table of how valid and how varied answers are
    {{ across STUDY ARM BASE [SETTING ...] }}         one pair of arms over the settings
    {{ picture STUDY SETTING }}  {{ forest STUDY }}   learning curves; differences as a picture
    {{ mean STUDY SETTING ARM FIGURE }}               one mean
    {{ diff STUDY SETTING ARM BASE FIGURE }}          one paired difference in points, with its interval
    {{ cost STUDY SETTING ARM BASE }}                 processor time of training, as a multiple of another arm's
    {{ tokens STUDY SETTING ARM [BASE] }}             share of the baseline's tokens to its final accuracy
    {{ collapsed STUDY SETTING ARM }}                 seeds that collapsed, of how many
    {{ collapsed_anywhere ARM }}                      the same over all studies
    {{ sweep STUDY FAMILY }}                          table of arms over learning rates
    {{ tuned STUDY FAMILY ARM BASE [FIGURE] }}        one paired difference, each arm at its own rate
    {{ untuned STUDY FAMILY ARM BASE [FIGURE] }}      the same, over all rates alike
    {{ suits STUDY FAMILY ARM }}                      rates that suit an arm, of how many
    {{ collapsed_rates STUDY ARM }}                   runs that collapsed at any rate of any family
    {{ rates_picture STUDY }}                         Pass@1 over the learning rate
    {{ start STUDY SETTING FIGURE }}                  one mean of the common starts
"""

import argparse
import math
import re
import shlex
import sys
from functools import cache
from pathlib import Path

from exgrpo.lab.studies.pictures import draw_arms, draw_differences, draw_setting
from exgrpo.lab.studies.report import regime_line
from exgrpo.lab.studies.running import duration
from exgrpo.lab.studies.study_file import file_name
from exgrpo.lab.studies.summary import (
    Findings,
    answer_rows,
    arm_rows,
    difference_rows,
    interval,
    load_findings,
    tokens_text,
)
from exgrpo.lab.studies.sweep import Sweep, draw_sweeps
from exgrpo.report import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parent))  # run as a script, or loaded by a test

from advice import FILE as ADVICE
from advice import advice

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "lab"
PAGES = {
    ROOT / "docs" / f"{name}.md": ROOT / "benchmarks" / f"{name}.template.md"
    for name in ("evidence", "evidence-tables")
}
"""The pages and their templates."""
IMAGES = ROOT / "docs" / "images" / "evidence"
FIRST_LOOK = ("main", ("chains", "sums"), ("on-policy", "exgrpo", "positive-weight", "rehearsal"))
"""Study, settings and arms of the README's picture."""
SWEEPS = {"rates": ("chains", "sums", "countdown")}
"""Families of the studies whose settings are called `FAMILY RATE`."""
HEAD = "<!-- Made by tools/evidence.py from {} and results/lab/: change those, not this. -->\n\n"
COLUMNS = ("arm", "Pass@1", "Pass@8", "greedy", "tokens to baseline", "collapsed", "steps", "CPU s", "tried", "seeds")


@cache
def findings(study: str) -> Findings:
    """The stored results of a study."""
    return load_findings(RESULTS / study)


def command(study: str) -> str:
    """What to run, and what it took."""
    found = findings(study)
    cpu = math.fsum(run.cpu[-1] for run in found.runs.values() if run.cpu)
    seeds = found.study.seeds
    return (
        f"```bash\nexgrpo lab run benchmarks/studies/{study}.yaml --output_dir {study}\nexgrpo lab report {study}\n```\n\n"
        f"{len(found.runs)} runs, seeds {seeds[0]} to {seeds[-1]}, {duration(cpu)} of training on one thread (evaluations "
        f"apart). Raw: `benchmarks/results/lab/{study}/`."
    )


def arms(study: str, setting: str, *names: str) -> str:
    """Table of means."""
    rows = [row for row in arm_rows(findings(study), setting) if not names or row["arm"] in names]
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    return f"{regime_line(findings(study), setting)}\n\n{markdown_table(rows, columns)}"


def differences(study: str, setting: str, *names: str) -> str:
    """Table of paired differences to the study's baseline, and its contrasts."""
    rows = [row for row in difference_rows(findings(study), setting) if not names or row["arm"] in names]
    return markdown_table(rows)


def answers(study: str, setting: str, *names: str) -> str:
    """Table of how valid and how varied answers are."""
    rows = [row for row in answer_rows(findings(study), setting) if not names or row["arm"] in names]
    return markdown_table(rows)


def across(study: str, arm: str, base: str, *settings: str) -> str:
    """One pair of arms over the settings that have both."""
    found = findings(study)
    rows = []
    for setting in settings or [setting.name for setting in found.study.settings]:
        for row in difference_rows(found, setting, pairs=[(arm, base)]):
            tokens = tokens_text(*found.tokens_to_baseline(setting, arm, base))
            rest = {name: value for name, value in row.items() if name not in ("arm", "against")}
            rows.append({"setting": setting, **rest, f"tokens to {base}": tokens})
    return markdown_table(rows)


def picture(study: str, setting: str) -> str:
    """Learning curves of a setting."""
    return f"![Learning curves: {study}, {setting}](images/evidence/{study}-{file_name(setting)}.png)"


def forest(study: str) -> str:
    """Paired differences of a study."""
    return f"![Paired differences: {study}](images/evidence/{study}-differences.png)"


def mean(study: str, setting: str, arm: str, figure: str) -> str:
    """One mean, three decimals."""
    value = findings(study).mean(setting, arm, figure)
    return "–" if value is None else f"{value:.3f}"


def diff(study: str, setting: str, arm: str, base: str, figure: str = "pass_at_1") -> str:
    """One paired difference, in points."""
    difference = findings(study).difference(setting, arm, base, figure)
    if difference is None:
        raise SystemExit(f"{study}, {setting}: {arm} and {base} have fewer than five pairs of {figure}.")
    return interval(difference)


def cost(study: str, setting: str, arm: str, base: str) -> str:
    """Processor time of training, as a multiple of the base's over their common seeds."""
    found = findings(study)
    seeds = found.seeds(setting, arm, base)
    ours, theirs = (math.fsum(found.runs[setting, name, seed].cpu[-1] for seed in seeds) for name in (arm, base))
    return f"{ours / theirs:.1f}"


def tokens(study: str, setting: str, arm: str, base: str | None = None) -> str:
    """Share of the baseline's tokens, and in how many seeds it was reached."""
    return str(tokens_text(*findings(study).tokens_to_baseline(setting, arm, base)))


def collapsed(study: str, setting: str, arm: str) -> str:
    """Seeds that collapsed."""
    count, of = findings(study).collapsed(setting, arm)
    return f"{count} of {of}"


def collapsed_anywhere(arm: str) -> str:
    """Runs of an arm that collapsed, in all stored studies together."""
    studies = [findings(path.parent.name) for path in sorted(RESULTS.glob("*/results.jsonl"))]
    runs = [run for found in studies for (_, name, _), run in found.runs.items() if name == arm]
    return f"{sum(run.collapsed for run in runs)} of {len(runs)}"


def start(study: str, setting: str, figure: str) -> str:
    """Mean of a figure of the common starts, three decimals."""
    starts = {seed: run.curve[0] for (name, _, seed), run in findings(study).runs.items() if name == setting}
    return f"{math.fsum(point[figure] for point in starts.values()) / len(starts):.3f}"


@cache
def swept(study: str, family: str) -> Sweep:
    """The settings of a family, by learning rate."""
    return Sweep.of_settings(findings(study), family)


def sweep(study: str, family: str) -> str:
    """Table of arms over learning rates."""
    return markdown_table(swept(study, family).rows())


def tuned(study: str, family: str, arm: str, base: str, figure: str = "pass_at_1", at: str = "tuned") -> str:
    """One paired difference, each arm at the rate that the other seeds choose, in points."""
    difference = swept(study, family).difference(arm, base, figure, at)
    if difference is None:
        raise SystemExit(
            f"{study}, {family}: {arm} and {base} have fewer than five pairs of {figure}, or too many ties."
        )
    return interval(difference)


def untuned(study: str, family: str, arm: str, base: str, figure: str = "pass_at_1") -> str:
    """One paired difference of the means over all rates, in points."""
    return tuned(study, family, arm, base, figure, "untuned")


def suits(study: str, family: str, arm: str) -> str:
    """Rates that suit an arm."""
    found = swept(study, family)
    return f"{found.suits(arm)} of {len(found.runs[arm])}"


def collapsed_rates(study: str, arm: str) -> str:
    """Runs of an arm that collapsed, over all rates and families."""
    counts = [swept(study, family).collapsed(arm) for family in SWEEPS[study]]
    return f"{sum(count for count, _ in counts)} of {sum(of for _, of in counts)}"


def rates_picture(study: str) -> str:
    """Pass@1 over the learning rate."""
    return f"![Held-out Pass@1 over the learning rate](images/evidence/{study}-sweep.png)"


DIRECTIVES = {
    f.__name__: f
    for f in (
        command,
        arms,
        differences,
        answers,
        across,
        picture,
        forest,
        mean,
        diff,
        cost,
        tokens,
        collapsed,
        collapsed_anywhere,
        start,
        sweep,
        tuned,
        untuned,
        suits,
        collapsed_rates,
        rates_picture,
    )
}


def render(template: str) -> str:
    """A template's text with every directive filled in."""

    def fill(match: re.Match[str]) -> str:
        name, *arguments = shlex.split(match[1])
        if name not in DIRECTIVES:
            raise SystemExit(f"The template has no directive {name!r}: {', '.join(DIRECTIVES)}.")
        return DIRECTIVES[name](*arguments)

    return re.sub(r"\{\{(.+?)\}\}", fill, template)


def pages() -> dict[Path, str]:
    """The pages as the results have them."""
    return {
        page: HEAD.format(template.name) + render(template.read_text(encoding="utf-8"))
        for page, template in PAGES.items()
    }


def draw(text: str) -> list[Path]:
    """Draw the pictures that pages show."""
    shown, written = set(re.findall(r"images/evidence/([^)]+)\.png", text)), []
    for study in sorted({path.parent.name for path in RESULTS.glob("*/results.jsonl")}):
        found = findings(study)
        for setting in found.study.settings:
            if (name := f"{study}-{file_name(setting.name)}") in shown:
                written.append(draw_setting(found, setting.name, IMAGES / f"{name}.png"))
        if f"{study}-differences" in shown:
            path = draw_differences(found, IMAGES / f"{study}-differences.png")
            assert path is not None, study
            written.append(path)
        if f"{study}-sweep" in shown:
            sweeps = [swept(study, family) for family in SWEEPS[study]]
            written.append(draw_sweeps(sweeps, list(sweeps[0].runs), IMAGES / f"{study}-sweep.png"))
    missing = shown - {path.stem for path in written}
    if missing:
        raise SystemExit(f"The pages show pictures that nothing draws: {', '.join(sorted(missing))}.")
    return written


def main() -> int:
    """The command; 1 if a page is not what the results say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the pages and their pictures")
    what.add_argument("--check", action="store_true", help="fail if a page is not up to date")
    args = parser.parse_args()
    made = pages()
    files = {**made, ADVICE: advice(findings)}
    if args.write:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        study, settings, shown = FIRST_LOOK
        for path in [
            *draw("".join(made.values())),
            draw_arms(findings(study), settings, shown, IMAGES / "first-look.png"),
        ]:
            print(f"wrote {path.relative_to(ROOT)}")
        return 0
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not what the results say: run python tools/evidence.py --write")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
