"""Results in the schema of Every Eval Ever (evaleval/every_eval_ever, version 0.2.1), a record a model."""

from collections.abc import Mapping
from typing import Any

from .benchmarks import BENCHMARKS
from .intervals import CONFIDENCE

VERSION = "0.2.1"
METHOD = "Korn-Graubard (Clopper-Pearson at the effective sample size), clustered by question"


def shared_results(
    summary: Mapping[str, Any], versions: Mapping[str, str | None], stamp: str, command: str
) -> dict[str, dict[str, Any]]:
    """Return the record of each model.

    Args:
        summary: of `summarize`.
        versions: of the packages, by name.
        stamp: Unix time at which the evaluation began.
        command: that made it.
    """
    records = {}
    for model in summary["models"]:
        rows = [row for row in summary["results"] if row["model"] == model["name"] and row["avg"] is not None]
        records[model["name"]] = {
            "schema_version": VERSION,
            "evaluation_id": f"exgrpo/{model['name']}/{stamp}",
            "evaluation_timestamp": stamp,
            "retrieved_timestamp": stamp,
            "source_metadata": {
                "source_name": "exgrpo evaluate",
                "source_type": "evaluation_run",
                "source_organization_name": "unknown",
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "exgrpo", "version": versions.get("exgrpo") or "unknown"},
            "model_info": _model(model, versions),
            "evaluation_results": [
                _result(row, model, summary["benchmarks"][row["benchmark"]], command) for row in rows
            ],
        }
    return records


def _model(model: Mapping[str, Any], versions: Mapping[str, str | None]) -> dict[str, Any]:
    if model.get("base_url"):
        return {"name": model["name"], "id": model["name"], "inference_platform": model["base_url"]}
    engine = {"name": "transformers", "version": versions.get("transformers") or "unknown"}
    return {"name": model["name"], "id": model["name"], "inference_engine": engine}


def _result(
    row: Mapping[str, Any], model: Mapping[str, Any], benchmark: Mapping[str, Any], command: str
) -> dict[str, Any]:
    average = row["avg"]
    known = BENCHMARKS.get(row["benchmark"])
    source: dict[str, Any] = {"dataset_name": row["benchmark"], "source_type": "other"}
    if known is not None and benchmark["source"] == known.hub:
        source = {
            "dataset_name": known.title,
            "source_type": "hf_dataset",
            "hf_repo": known.hub,
            "hf_split": known.split,
            "samples_number": row["questions"],
        }
    uncertainty: dict[str, Any] = {
        "confidence_interval": {
            "lower": average["low"],
            "upper": average["high"],
            "confidence_level": CONFIDENCE,
            "method": METHOD,
        },
        "num_samples": row["samples"],
    }
    if average["error"] is not None:
        uncertainty["standard_error"] = {"value": average["error"], "method": "clustered by question"}
    return {
        "evaluation_name": f"{row['benchmark']}, avg@{benchmark['num_samples']}",
        "source_data": source,
        "metric_config": {
            "evaluation_description": f"share of right completions by {benchmark['verifiers'][0]}",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
        },
        "score_details": {"score": average["mean"], "uncertainty": uncertainty},
        "generation_config": {
            "generation_args": {
                "temperature": model["temperature"],
                "top_p": model["top_p"],
                "max_tokens": model["max_tokens"],
                "execution_command": command,
            },
            "additional_details": {"system_prompt": str(benchmark["system_prompt"]), "seed": str(model["seed"])},
        },
    }
