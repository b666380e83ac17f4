#!/usr/bin/env bash
# Gathers what gpu_check.sh installs on a machine without network: run it where pip reaches PyPI.
#
#   benchmarks/gather_wheels.sh [FOLDER]        (wheels/ unless given)
#
# The wheels are for CPython 3.12 on x86-64 Linux. torch, and what comes with it, is the GPU
# machine's own; Ray and what only development needs are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FOLDER=${1:-wheels}
readonly MAX_MIB=60
readonly PYTHON=${PYTHON:-python3}
# What `--runner local`, the ranks and the GPU tests import, and what these import in turn. Left out:
# what only downloads (hf-xet), what only a database needs (SQLAlchemy, alembic), charts (plotly).
readonly PACKAGES=(
  annotated-doc annotated-types anyio certifi click colorlog deepspeed einops filelock fsspec h11
  hjson httpcore2 httpx2 huggingface_hub idna iniconfig markdown-it-py mdurl megatron-core msgpack
  numpy nvidia-ml-py optuna packaging pluggy psutil py-cpuinfo pydantic pydantic_core Pygments
  pytest pytest-timeout PyYAML regex rich safetensors setuptools shellingham tokenizers tqdm
  transformers truststore typing-inspection typing_extensions
)
# The manylinux tags that these projects publish; pip matches them exactly.
readonly PLATFORMS=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64
  manylinux2014_x86_64 manylinux_2_12_x86_64 manylinux2010_x86_64 manylinux1_x86_64)

mkdir -p "$FOLDER"
rm -f "$FOLDER"/*.whl # pip refuses two versions of one package

# DeepSpeed is published as source only; without its compiled operators it is the same wheel for
# every Python and machine.
pinned=()
for package in "${PACKAGES[@]}"; do
  requirement=$(grep -i -m1 "^$package==" constraints.txt) || {
    echo "gather_wheels: constraints.txt must pin $package, and does not; add it" >&2
    exit 1
  }
  if [[ $package == deepspeed ]]; then
    DS_BUILD_OPS=0 "$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation \
      --wheel-dir "$FOLDER" "$requirement"
  else
    pinned+=("$requirement")
  fi
done
"$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
  --implementation cp "${PLATFORMS[@]/#/--platform=}" --dest "$FOLDER" "${pinned[@]}"

shopt -s nullglob
readonly SOURCES=("$FOLDER"/*.tar.gz "$FOLDER"/*.zip)
if ((${#SOURCES[@]})); then
  echo "gather_wheels: only wheels can be installed there, got ${SOURCES[*]}" >&2
  exit 1
fi
readonly WHEELS=("$FOLDER"/*.whl)
size_mib=$(($(cat "${WHEELS[@]}" | wc -c) / 1024 / 1024))
echo "${#WHEELS[@]} wheels, $size_mib MiB of $MAX_MIB MiB, in $FOLDER"
if ((size_mib >= MAX_MIB)); then
  echo "gather_wheels: all wheels together must be under $MAX_MIB MiB; the largest are:" >&2
  du -m "${WHEELS[@]}" | sort -rn | head -5 >&2
  exit 1
fi
