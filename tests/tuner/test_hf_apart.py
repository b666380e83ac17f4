import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.hf_apart import config_read_apart
from tuner.hf_config import config_read

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "rms_norm_eps": float("inf"),
}


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported it."""
    monkeypatch.delitem(sys.modules, "transformers", raising=False)


@pytest.mark.usefixtures("without_transformers")
def test_another_process_reads_what_this_one_would() -> None:
    apart = config_read_apart(LLAMA)
    assert "transformers" not in sys.modules
    assert apart == config_read(LLAMA)


@pytest.mark.usefixtures("without_transformers")
def test_a_refusal_crosses_over_as_its_sentence() -> None:
    with pytest.raises(ValueError, match="model_type must be a causal language model") as refused:
        config_read_apart({"model_type": "lama"})
    assert "llama" in str(refused.value)


def test_a_driver_that_has_read_a_model_holds_no_torch() -> None:
    program = (
        "import json, sys\n"
        "from tuner.hf_file import hf_model_of\n"
        "hf_model_of(json.loads(sys.argv[1]), name='m', named='job.yaml')\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps({**LLAMA, "rms_norm_eps": 1e-6})],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
