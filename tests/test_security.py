"""What a study reads and writes: data is never run, and no path leads out of its folder."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny_job import cpu_cluster
from tests.tuner.computed_study import ComputedRunner, outcome_of, study
from tuner.errors import UserError
from tuner.job import read_job
from tuner.kept_files import write_atomically
from tuner.launch import LaunchFile, LaunchSpec
from tuner.launch_files import write_launch_files
from tuner.plan import Backend, ParallelPlan
from tuner.study import Budget, StudyListener
from tuner.study_folder import StudyFolder

ROOT = Path(__file__).parents[1]
PACKAGES = ("tuner", "search_spaces", "runners", "reports")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
FACTORY_MODULE = "runners/bench/hf_model.py"
"""Where ``package.module:factory`` of a job is imported: the one place where user code runs."""


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call of a file, with the dotted name of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def argument(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


def findings(path: Path) -> list[str]:
    """What a file does that it must not."""
    tree = ast.parse(path.read_text())
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
            found += [f"imports {n}" for n in names if n.split(".")[0] in UNPICKLING]
    loaders = safe_loaders(tree)
    for call, name in calls(path):
        found += [text for text, is_so in call_findings(call, name, loaders) if is_so]
    return found


def safe_loaders(tree: ast.Module) -> set[str | None]:
    """Classes of a file that extend YAML's safe loader."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) == "yaml.SafeLoader" for base in node.bases)
    }


def call_findings(
    call: ast.Call, name: str, loaders: set[str | None]
) -> Iterator[tuple[str, bool]]:
    yield f"calls {name}", name in RUNS_TEXT | {"os.system", "os.popen", "tempfile.mktemp"}
    yield f"{name} with a shell", argument(call, "shell") not in (None, "False")
    yield name, name.startswith("yaml.") and name.endswith(("unsafe_load", "full_load", "load_all"))
    yield "yaml.load", name == "yaml.load" and argument(call, "Loader") not in loaders
    yield "torch.load", name == "torch.load" and argument(call, "weights_only") != "True"
    yield "a NumPy file of objects", argument(call, "allow_pickle") not in (None, "False")


def test_no_module_runs_or_unpickles_what_it_reads() -> None:
    assert {str(path): found for path in SOURCES if (found := findings(path))} == {}


@pytest.mark.parametrize(
    "bad",
    [
        *("import pickle", "from pickle import loads", "eval('1')", "os.system('ls')"),
        *("yaml.load(text)", "yaml.load(text, Loader=yaml.Loader)", "yaml.unsafe_load(text)"),
        *("subprocess.run('ls', shell=True)", "torch.load(path)", "import cloudpickle"),
        "numpy.load(path, allow_pickle=True)",
    ],
)
def test_the_check_finds_what_it_looks_for(tmp_path: Path, bad: str) -> None:
    (tmp_path / "bad.py").write_text(bad)
    assert findings(tmp_path / "bad.py")


def test_user_code_is_imported_in_one_place_by_a_name_from_the_job() -> None:
    """Elsewhere modules are imported only by names that are written here."""
    dynamic = []
    for path in SOURCES:
        for call, name in calls(path):
            if name.split(".")[-1] == "import_module" and not isinstance(
                call.args[0], ast.Constant
            ):
                dynamic.append(str(path.relative_to(ROOT)))
    others = {"reports/emit/torchtitan.py"}  # text of a script for the user, not run here
    assert set(dynamic) - others == {FACTORY_MODULE}


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_listens_on_all_interfaces_unasked(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert '"0.0.0.0"' not in path.read_text(), path


def test_a_yaml_job_that_names_a_python_object_makes_none(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (tmp_path / "job.yaml").write_text(
        f'workload: !!python/object/apply:os.system ["touch {made}"]\n'
    )
    with pytest.raises(UserError):
        read_job(tmp_path / "job.yaml", lambda: cpu_cluster(2))
    assert not made.exists()


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "..", "", "launch/../../evil"])
def test_a_launch_file_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH)
    file = LaunchFile(name=name, text="evil")
    spec = LaunchSpec(plan=plan, num_nodes=1, ranks_per_node=1, files=(file,))
    with pytest.raises(ValueError, match="must lie in its folder"):
        write_launch_files(spec, tmp_path / "launch")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "inside",
    [
        *("trials/0000", "trials", "best", "finals", "job.json", "journal.log", "report.md"),
        *("second_pass", "second_pass.json", "soak", "soak.json", "report.html", "trials.csv"),
        "comparison.html",
    ],
)
def test_a_link_out_of_the_study_folder_is_refused(tmp_path: Path, inside: str) -> None:
    folder = StudyFolder(tmp_path / "study")
    outside = tmp_path / "outside"
    outside.mkdir()
    link = folder.path / inside
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    doors: dict[str, Callable[[], object]] = {
        "trials/0000": lambda: folder.trial_folder(0),
        "trials": lambda: folder.trial_folder(0),
        "best": lambda: folder.best_folder,
        "finals": lambda: folder.final_folder(0, 0),
        "job.json": lambda: folder.job_file,
        "journal.log": lambda: folder.journal_file,
        "report.md": lambda: folder.report_file,
        "second_pass": lambda: folder.second_pass_folder(0),
        "second_pass.json": lambda: folder.second_pass_file,
        "soak": lambda: folder.soak_folder,
        "soak.json": lambda: folder.soak_file,
        "report.html": lambda: folder.html_report_file,
        "trials.csv": lambda: folder.trials_file,
        "comparison.html": lambda: folder.comparison_files,
    }
    with pytest.raises(UserError, match="must lie in the study folder, but links to"):
        doors[inside]()


def test_a_linked_trial_folder_ends_the_study_and_nothing_is_written_there(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    one = study(tmp_path, ComputedRunner(outcome_of))
    (tmp_path / "study" / "trials" / "0001").symlink_to(outside)
    with pytest.raises(UserError, match="must lie in the study folder"):
        one.run(Budget(trials=3), StudyListener())
    assert list(outside.iterdir()) == []


def test_a_file_that_is_replaced_is_never_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("report.md", "report.md.tmp"):
        (tmp_path / name).symlink_to(precious)
    write_atomically(tmp_path / "report.md", b"new")
    assert precious.read_text() == "mine"
    assert (tmp_path / "report.md").read_bytes() == b"new"
    assert not (tmp_path / "report.md").is_symlink()


def test_a_study_s_name_in_storages_holds_no_more_than_letters(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "a b;drop table'\"")
    folder.create()
    assert all(c.isalnum() or c in "._-" for c in folder.study_name)


def test_a_trial_s_file_is_data_only(tmp_path: Path) -> None:
    one = study(tmp_path, ComputedRunner(outcome_of))
    one.run(Budget(trials=2), StudyListener())
    path = tmp_path / "study" / "trials" / "0001" / "trial.json"
    trial = json.loads(path.read_text())
    trial["plan"]["backend"] = "__import__('os').system('false')"
    path.write_text(json.dumps(trial))
    with pytest.raises(UserError, match="cannot be read"):
        StudyFolder(tmp_path / "study").trials()
