#!/usr/bin/env bash
# A GPU check in minutes: finds python, sees to the packages, and runs gpu.py. `benchmarks/gpu.sh --help` lists its options.
#   --wheels DIR   install what is missing from this folder, into a virtual environment that sees the packages there are
#   --prepare      stop once the packages are there
# Environment: PYTHON (python3), VENV (.venv-gpu in this repository).
set -euo pipefail
since=$(date +%s)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { printf '%s\n' "$@" >&2; exit 2; }

wheels= prepare= help=
options=()
while (($#)); do
    case $1 in
        --wheels) [[ $# -ge 2 ]] || fail "--wheels needs a folder."; wheels=$2; shift ;;
        --wheels=*) wheels=${1#*=} ;;
        --prepare) prepare=1 ;;
        -h | --help) help=1; options+=("$1") ;;
        *) options+=("$1") ;;
    esac
    shift
done
[[ -z $wheels || -d $wheels ]] || fail "--wheels: $wheels is not a folder."

python=${PYTHON:-$(command -v python3 || command -v python || true)}
[[ -n $python ]] || fail "There is no python here. Set PYTHON to one of version 3.11 or newer."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is $("$python" --version 2>&1), and 3.11 or newer is needed. Set PYTHON to another."
[[ -z $help ]] || exec "$python" "$here/benchmarks/gpu.py" --help

lacking() { "$python" "$here/benchmarks/gpu_packages.py"; }
needs() { lacking | sed -n 's/^needs //p'; }

install_from_wheels() {  # what each round installs may ask for more
    local venv=${VENV:-$here/.venv-gpu} before= now wanted pip=
    if [[ ! -x $venv/bin/python ]]; then
        # pip is seen through parent.pth where $python has one, and ensurepip is not everywhere
        if "$python" -m pip --version >/dev/null 2>&1; then pip=--without-pip; fi
        "$python" -m venv --system-site-packages $pip "$venv" || fail "$python could not make a virtual environment in $venv."
        echo '*' >"$venv/.gitignore"
        # the packages of $python itself, which are not the system's where it belongs to an environment
        "$python" -c 'import site, sysconfig; print(*dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()]), sep="\n")' \
            >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/parent.pth"
    fi
    python=$venv/bin/python
    while now=$(lacking | grep -v ' torch' || true) && [[ -n $now && $now != "$before" ]]; do
        while read -r _ wanted; do
            "$python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$wheels" --no-deps "$wanted" ||
                echo "$wheels holds no wheel for $wanted that fits." >&2
        done <<<"$now"
        before=$now
    done
}

[[ -z $wheels || -z $(needs) ]] || install_from_wheels
if missing=$(needs) && [[ -n $missing ]]; then
    grep -q '^torch' <<<"$missing" && fail "PyTorch is missing, or too old: $(grep '^torch' <<<"$missing"). Install the build for your GPU first: https://pytorch.org/get-started"
    fail "These packages are missing, or of a version that does not fit: ${missing//$'\n'/, }" \
        "Run: $python -m pip install $(sed "s/.*/'&'/" <<<"$missing" | paste -sd' ')" \
        "Or, without a network, give a folder of wheels: benchmarks/gpu.sh --wheels DIR"
fi
"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("exgrpo") is None)' ||
    export PYTHONPATH=$here/src${PYTHONPATH:+:$PYTHONPATH}
[[ -z $prepare ]] || { echo "All packages are there: $python"; exit 0; }
exec "$python" "$here/benchmarks/gpu.py" --since "$since" ${options[@]+"${options[@]}"}
