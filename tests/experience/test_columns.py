"""One table of a trajectory's columns: the log's SQL text, the buffer, exports and their card agree with it."""

import re

import pyarrow as pa

from exgrpo.archive.layout import trajectory_schema
from exgrpo.experience.columns import COLUMNS, RECORD, SCALARS, STORED
from exgrpo.experience.events import Stored
from exgrpo.experience.trajectory import Trajectory
from exgrpo.log import schema


def test_the_sql_text_is_that_of_the_table():
    (body,) = re.findall(r"CREATE TABLE trajectory \((.*?)\);", schema.DDL, re.DOTALL)
    lines = [line for line in body.splitlines() if not line.strip().startswith("--")]
    said = {}
    for definition in " ".join(lines).split(","):
        name, kind, *rest = definition.split()
        said[name] = (kind, "NULL" not in rest and "PRIMARY" not in rest)
    assert said.pop("seq") == said.pop("crc") == ("INTEGER", False)
    assert said == {c.name: (c.sql, c.nullable) for c in COLUMNS if c.sql}


def test_names_are_those_of_trajectories_and_of_events():
    assert len({c.name for c in COLUMNS}) == len(COLUMNS)
    arrays = {"completion_ids", "behaviour_logps", "rewards", "embedding"}
    assert {c.name for c in SCALARS} == Trajectory.__dataclass_fields__.keys() - arrays - {"question"}
    assert {c.name for c in STORED} == Stored.__dataclass_fields__.keys() - {"serial"}
    assert all(hasattr(Trajectory, c.attribute) or c.attribute in Trajectory.__dataclass_fields__ for c in SCALARS)
    assert RECORD.itemsize == 56


def test_an_export_of_format_1_has_no_later_column():
    names = {version: set(trajectory_schema(pa, "float16", False, version).names) for version in (1, 2)}
    assert names[2] - names[1] == {"correct", "advantage", "quality", "embedding"}
    assert trajectory_schema(pa, "float16", True).field("behaviour_logps").type == pa.list_(pa.float16())
