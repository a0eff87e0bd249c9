"""Trajectories without behaviour log-probs: what a run may do with them, and what it is refused by name."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..archive.dataset_card import CARD
from ..archive.exported import unknown_in_export
from ..config import ObjectiveConfig, ReplayConfig
from ..errors import ConfigurationError
from ..log import LogReader, Provenance, log_in
from ..log.connection import usable
from ..log.records import UNKNOWN

CORRECTIONS_WITHOUT = ("shaped", "none", "likelihood")
"""Corrections that mean something where the log-probs are unknown and 0 in their place: with `shaped` that is w = pi, as in
LUFFY (arXiv 2504.14945); the others never look at them."""
CHOICES_WITH = ("lowest_nll", "lowest_confidence_variance", "headroom")
"""Choices of a trajectory that begin with the log-probs it was stored with."""


def check_behaviour(replay: ReplayConfig, objective: ObjectiveConfig, without: Sequence[Provenance], name: str) -> None:
    """Refuse options that need the behaviour log-probs of trajectories that have none.

    Args:
        replay, objective: of the run.
        without: origins of such trajectories.
        name: of where they are stored, for the message.

    Raises:
        ConfigurationError: one of them.
    """
    if not without or not replay.active:
        return
    for option, came, instead in _refused(replay, objective):
        raise ConfigurationError(
            f"{name} holds trajectories without behaviour log-probs (from {without[0].source}), and {option}={came!r} needs "
            f"them. Set {option} to {instead}; or import the data again with --log_probs forward."
        )


def _refused(replay: ReplayConfig, objective: ObjectiveConfig) -> Iterator[tuple[str, object, str]]:
    if objective.correction not in CORRECTIONS_WITHOUT:
        yield "correction", objective.correction, " or ".join(map(repr, CORRECTIONS_WITHOUT))
    if replay.max_drift > 0:
        yield "max_drift", replay.max_drift, "0"
    if replay.trajectory_choice in CHOICES_WITH:
        yield "trajectory_choice", replay.trajectory_choice, "'lowest_entropy' or 'random'"
    if replay.question_choice == "headroom":
        yield "question_choice", replay.question_choice, "'gaussian' or 'uniform'"


def without_behaviour(path: str) -> list[Provenance]:
    """List origins of stored experience without behaviour log-probs, in an output directory, log or export.

    None where there is no experience (any more): a resumed run does not need it, and another one reports it when it
    starts.
    """
    with usable(Path(path)):
        place = Path(path).expanduser()
        if place.is_dir() and log_in(place).is_file():
            place = log_in(place)
        is_folder = place.is_dir()
    if is_folder and not (place / CARD).is_file():
        return []
    if is_folder:
        return unknown_in_export(place)
    with LogReader(place) as reader:
        return unknown_in_log(reader)


def unknown_in_log(reader: LogReader) -> list[Provenance]:
    """List origins of what the newest branch of a log now stores without behaviour log-probs."""
    unknown = {number: origin for number, origin in reader.origins().items() if origin.behaviour_logps == UNKNOWN}
    if not unknown:
        return []
    sql = "SELECT DISTINCT origin FROM trajectories WHERE id NOT IN (SELECT trajectory FROM evictions)"
    return [unknown[number] for (number,) in reader.rows(sql) if number in unknown]
