"""What a report says of a study beside its trials: layout, memory limit, environment, waterfall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.launch import Routing
from tuner.study_folder import StudyFolder
from tuner.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """The JSON files of a study folder, read once."""

    path: Path
    gpu: str
    """The preset's name, ``cpu`` for CPU ranks."""
    num_nodes: int
    gpus_per_node: int
    memory_limit_bytes: int
    """What one rank may allocate."""
    routing: Routing | None
    """Where tokens went in a model with experts; None of one that has none, or is not known."""
    environment: Mapping[str, Any]
    waterfall: Mapping[str, Any]

    @classmethod
    def read(cls, folder: StudyFolder) -> StudyFacts:
        """Reads them.

        Raises:
            UserError: it is no study folder, or a file in it cannot be read.
        """
        job = folder.read_json(folder.job_file)
        return cls(
            path=folder.path,
            gpu=job["identity"]["cluster"]["gpu"],
            num_nodes=job["num_nodes"],
            gpus_per_node=job["gpus_per_node"],
            memory_limit_bytes=job["memory_limit_bytes"],
            routing=_routing(job),
            environment=folder.read_json(folder.environment_file),
            waterfall=folder.read_json(folder.waterfall_file),
        )

    @property
    def ranks_text(self) -> str:
        """``2 x 8 ranks of h100-sxm-80gb``."""
        return f"{self.num_nodes} x {self.gpus_per_node} ranks of {self.gpu}"


def _routing(job: Mapping[str, Any]) -> Routing | None:
    """As trials were measured; a study from before there was a choice let the router choose."""
    routing: Routing = job["identity"].get("measure", {}).get("routing", "learned")
    has_experts = (job.get("shape") or {}).get("experts") is not None
    return routing if has_experts or routing == "worst" else None


def refused_words(facts: StudyFacts) -> str:
    """What stands above the table of what each rule removed."""
    return (
        f"Of {facts.waterfall['num_combinations']:,} combinations of options "
        f"{facts.waterfall['num_legal']:,} are legal. Each rule removed, of those that the rules "
        "above it had left:"
    )


def ranks_words(facts: StudyFacts) -> str:
    """The ranks of a trial, and what each may allocate."""
    return f"{facts.ranks_text}, each with at most {size_text(facts.memory_limit_bytes)}."
