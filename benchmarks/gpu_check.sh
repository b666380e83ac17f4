#!/usr/bin/env bash
# Checks paratune on a bare machine with one NVIDIA GPU, in under nine minutes: Python 3.12 with a
# torch of its own, no network, no Ray. Wheels come from gather_wheels.sh, run elsewhere.
#
#   benchmarks/gpu_check.sh [FOLDER]        (wheels/ unless given)
#
# Runs the GPU tests, then a study of a GPT of 1.3 billion parameters on all three frameworks.
# Nothing is installed for good; the study stays under studies/. Exits 0 when both went well.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly WHEELS=${1:-wheels}
readonly PYTHON=${PYTHON:-python3}
readonly LIMIT_S=525 TESTS_S=150 SEARCH_S=180 LAST_TRIAL_S=45
STUDY=studies/gpu-check-$(date +%Y%m%d-%H%M%S)
WORK=$(mktemp -d)
readonly STUDY WORK
trap 'rm -rf "$WORK"' EXIT

left_s() { echo $((LIMIT_S - SECONDS)); } # SECONDS counts from the start of this script

say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

install_all() {
  local pip=("$PYTHON" -m pip install --quiet --no-index --no-deps --target "$WORK/site")
  "${pip[@]}" --no-compile "$WHEELS"/*.whl
  export PYTHONPATH=$WORK/site
  mkdir "$WORK/source" # built from a copy: the checkout stays as it is
  cp -r pyproject.toml README.md LICENSE tuner search_spaces runners reports "$WORK/source"
  "${pip[@]}" --no-build-isolation "$WORK/source"
}

# tune SECONDS OPTION...: the study goes on for this long, and for its last trial at most.
tune() {
  local seconds=$1
  shift
  timeout --signal=INT --kill-after=20 "$((seconds + LAST_TRIAL_S))" \
    "$PYTHON" -m tuner tune "$WORK/examples/gpt-1.3b-1gpu.yaml" --runner local --study "$STUDY" \
    --time "${seconds}s" "$@"
}

compgen -G "$WHEELS/*.whl" >/dev/null || {
  echo "gpu_check: $WHEELS must hold wheels, and holds none; run benchmarks/gather_wheels.sh" >&2
  exit 2
}
say "installing the wheels of $WHEELS into $WORK"
install_all
"$PYTHON" - <<'END'
import sys
import torch

if not torch.cuda.is_available():
    sys.exit(f"gpu_check: torch {torch.__version__} must find a CUDA GPU, and finds none")
print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
END

failures=0
say "the GPU tests"
timeout --kill-after=10 "$TESTS_S" "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider --durations=0 \
  tests/runners/test_gpu.py || failures=1

cp -r examples "$WORK"
sed -i 's/^cluster: .*/cluster: auto/' "$WORK/examples/gpt-1.3b-1gpu.yaml"
say "the study, plans chosen by prediction"
tune "$SEARCH_S" --trials 10 || failures=1
say "the study goes on at random: fp32, and micro-batches that do not fit, get their turn"
tune "$(($(left_s) - LAST_TRIAL_S))" --trials 30 --sampler random || failures=1

say "done: $STUDY"
exit "$failures"
