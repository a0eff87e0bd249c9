"""Make `docs/evidence.md` from its template and the stored results: every figure of that page comes from here; and those of
`exgrpo presets --advise`.

    python tools/evidence.py --write    # after a study has run, or the template has changed
    python tools/evidence.py --check    # part of `make check`

In the template `{{ ... }}` stands for what the results say:

    {{ command STUDY }}                               how it was made: commands, size, time
    {{ arms STUDY SETTING [ARM ...] }}                table of means
    {{ differences STUDY SETTING [ARM ...] }}         table of paired differences
    {{ answers STUDY SETTING [ARM ...] }}             table of how valid and how varied answers are
    {{ across STUDY ARM BASE [SETTING ...] }}         one pair of arms over the settings
    {{ picture STUDY SETTING }}  {{ forest STUDY }}   learning curves; differences as a picture
    {{ mean STUDY SETTING ARM FIGURE }}               one mean
    {{ diff STUDY SETTING ARM BASE FIGURE }}          one paired difference, with its interval
    {{ tokens STUDY SETTING ARM [BASE] }}             share of the baseline's tokens to its final accuracy
    {{ collapsed STUDY SETTING ARM }}                 seeds that collapsed, of how many
    {{ collapsed_anywhere ARM }}                      the same over all studies
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
from exgrpo.report import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parent))  # run as a script, or loaded by a test

from advice import FILE as ADVICE
from advice import advice

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "lab"
TEMPLATE, PAGE = ROOT / "benchmarks" / "evidence.template.md", ROOT / "docs" / "evidence.md"
IMAGES = ROOT / "docs" / "images" / "evidence"
FIRST_LOOK = ("main", ("chains", "sums"), ("on-policy", "exgrpo", "positive-weight", "rehearsal"))
"""Study, settings and arms of the README's picture."""
HEAD = "<!-- Made by tools/evidence.py from evidence.template.md and results/lab/: change those, not this. -->\n\n"
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
    """One paired difference."""
    difference = findings(study).difference(setting, arm, base, figure)
    if difference is None:
        raise SystemExit(f"{study}, {setting}: {arm} and {base} have fewer than five pairs of {figure}.")
    return interval(difference)


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
        tokens,
        collapsed,
        collapsed_anywhere,
        start,
    )
}


def render(template: str) -> str:
    """The page's text."""

    def fill(match: re.Match[str]) -> str:
        name, *arguments = shlex.split(match[1])
        if name not in DIRECTIVES:
            raise SystemExit(f"The template has no directive {name!r}: {', '.join(DIRECTIVES)}.")
        return DIRECTIVES[name](*arguments)

    return HEAD + re.sub(r"\{\{(.+?)\}\}", fill, template)


def draw(page: str) -> list[Path]:
    """The pictures that a page shows."""
    shown, written = set(re.findall(r"images/evidence/([^)]+)\.png", page)), []
    for study in sorted({path.parent.name for path in RESULTS.glob("*/results.jsonl")}):
        found = findings(study)
        for setting in found.study.settings:
            if (name := f"{study}-{file_name(setting.name)}") in shown:
                written.append(draw_setting(found, setting.name, IMAGES / f"{name}.png"))
        if f"{study}-differences" in shown:
            path = draw_differences(found, IMAGES / f"{study}-differences.png")
            assert path is not None, study
            written.append(path)
    missing = shown - {path.stem for path in written}
    if missing:
        raise SystemExit(f"The page shows pictures that nothing draws: {', '.join(sorted(missing))}.")
    return written


def main() -> int:
    """The command; 1 if the page is not what the results say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the page and its pictures")
    what.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    args = parser.parse_args()
    page, said = render(TEMPLATE.read_text(encoding="utf-8")), advice(findings)
    if args.write:
        PAGE.write_text(page, encoding="utf-8")
        ADVICE.write_text(said, encoding="utf-8")
        study, settings, shown = FIRST_LOOK
        for path in [*draw(page), draw_arms(findings(study), settings, shown, IMAGES / "first-look.png")]:
            print(f"wrote {path.relative_to(ROOT)}")
        return 0
    for path, text in ((PAGE, page), (ADVICE, said)):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not what the results say: run python tools/evidence.py --write")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
