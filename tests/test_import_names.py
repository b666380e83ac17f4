"""Our four packages have generic names: they must be ours, and all of ours."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from runners.environment import OWN_PACKAGES, check_own_packages, environment_facts

CHECK = "from runners.environment import check_own_packages as check; check()"


@pytest.mark.parametrize("package", OWN_PACKAGES)
def test_a_package_is_provided_by_our_distribution_alone(package: str) -> None:
    assert set(packages_distributions()[package]) == {"paratune"}


def test_all_packages_lie_beside_tuner() -> None:
    files = [importlib.import_module(package).__file__ for package in OWN_PACKAGES]
    assert len({Path(str(file)).resolve().parent.parent for file in files}) == 1


def test_an_installation_as_it_should_be_passes() -> None:
    check_own_packages()


def test_a_stray_folder_of_the_same_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").touch()
    said = _check_in(tmp_path)
    assert "RuntimeError" in said
    assert f"reports was found in {tmp_path}" in said


def test_a_second_distribution_with_such_a_package_is_found(tmp_path: Path) -> None:
    other = tmp_path / "othertuner-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: othertuner\nVersion: 1.0\n")
    (other / "top_level.txt").write_text("tuner\n")
    assert "the installed distributions say ['othertuner', 'paratune']" in _check_in(tmp_path)


def test_the_facts_of_the_environment_are_plain_json_and_name_the_frameworks() -> None:
    facts = json.loads(json.dumps(environment_facts()))
    assert facts["versions"]["torch"]
    assert facts["versions"]["paratune"]
    assert facts["host"]["cores"] >= 1


def test_reading_the_environment_imports_no_framework() -> None:
    program = (
        "import sys; from runners.environment import environment_facts as f; f();"
        "sys.exit(','.join({'torch', 'ray', 'deepspeed', 'megatron', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def _check_in(folder: Path) -> str:
    """What the check says where this folder is first on the import path."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stderr
