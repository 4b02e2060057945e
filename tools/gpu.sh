# `./dev gpu` and `./dev gpu-kit`. Sourced by dev, whose functions it uses.

build_for_gpu() { build release flash_kda_cuda_tests flashkda host_cost; }

# The versions of dependencies.txt for one of its roles, as pip wants them.
pins_of() { awk -v role="$1" '$1 == role { print $2 "==" $3 }' dependencies.txt; }

# Binaries with their libraries, headers of what the Python extension compiles in, wheels, and the published package.
command_gpu_kit() {
  local kit=${1:-} platform download
  [[ -n $kit ]] || fail "gpu-kit: got no folder, accepted is the new folder to make"
  [[ ! -e $kit ]] || fail "gpu-kit: got $kit, which is there already, accepted is a new folder"
  need debian debian-build
  setup_python
  find_nvcc || fail "gpu-kit: nvcc not found"
  stage build build_for_gpu
  mkdir -p "$kit"/{bin,lib,prefix}
  cp build/tests/cuda/flash_kda_cuda_tests build/cli/flashkda build/bench/host_cost "$kit/bin"
  ldd "$kit"/bin/* | awk '$2 == "=>" && $1 !~ /^lib(c|m|gcc_s|stdc\+\+)\.so/ { print $3 }' | sort -u | xargs cp -L -t "$kit/lib"
  dpkg -L libfmt-dev libfmt9 libhwy-dev libhwy1 nlohmann-json3-dev | grep -E '^/usr/(include|lib|share/cmake)/' |
    tar -C / --no-recursion -T - -cf - | tar -C "$kit/prefix" -xf -
  download=(.venv/bin/pip download --quiet --no-deps --only-binary=:all: --python-version 3.12)
  for platform in manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 any; do download+=(--platform "$platform"); done
  { pins_of pip-gpu; pins_of pip | grep -vE '^(jax|mypy|numpy|torch)=='; } > "$kit/wheels.txt"
  stage wheels "${download[@]}" --dest "$kit/wheels" --requirement "$kit/wheels.txt"
  pins_of pip-peer > "$kit/peer.txt"
  stage peer "${download[@]}" --dest "$kit/peer" --requirement "$kit/peer.txt"
  du -sh "$kit"
}

# install_for_gpu KIT SCRATCH PYTHON: for PYTHON this package and what its GPU tests and peers need, from the kit beside the
# machine's torch, or all of it from PyPI into .venv. The published package, of the same module name, goes to SCRATCH/peer.
install_for_gpu() {
  local kit=$1 scratch=$2 python=$3
  if [[ -n $kit ]]; then
    # What this python3 sees, also where it is of a virtual environment itself, whose packages --system-site-packages leaves out.
    python3 -m venv --system-site-packages "$scratch/venv"
    python3 -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
      > "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/machine.pth"
    "$python" -m pip install --quiet --no-index --no-deps "$kit"/wheels/*.whl
    "$python" -m pip install --quiet --no-index --no-deps --target "$scratch/peer" "$kit"/peer/*.whl
    CMAKE_PREFIX_PATH=$kit/prefix/usr "$python" -m pip install --quiet --no-index --no-deps --no-build-isolation \
      --config-settings="cmake.define.CMAKE_LIBRARY_ARCHITECTURE=$(uname -m)-linux-gnu" .
  else
    setup_python
    "$python" -m pip install --quiet ".[test,fla]"
    pins_of pip-peer | "$python" -m pip install --quiet --no-deps --target "$scratch/peer" --requirement /dev/stdin
  fi
}

# Reports are in the folder as soon as each is complete. A run that was cut short goes on when it is started again with its
# folder: what passed is left out. `tools/record.py FOLDER` makes the record on any machine. What is not timed runs side by side.
command_gpu() {
  local folder=${1:-} kit=${2:-} scratch tests=$PWD/build/tests/cuda/flash_kda_cuda_tests flashkda=$PWD/build/cli/flashkda
  local host_cost=$PWD/build/bench/host_cost python=$PWD/.venv/bin/python not_here=''
  [[ -n $folder ]] || fail "gpu: got no folder, accepted is the folder to write reports into"
  has_gpu || fail "gpu: no GPU here (nvidia-smi -L finds none)"
  find_nvcc || fail "gpu: nvcc not found"
  mkdir -p "$folder"/{tests,sanitizer,accuracy,benchmarks,logs,passed}
  folder=$(realpath "$folder")
  scratch=$(mktemp -d)
  if [[ -n $kit ]]; then
    kit=$(realpath "$kit")
    tests=$kit/bin/flash_kda_cuda_tests flashkda=$kit/bin/flashkda host_cost=$kit/bin/host_cost python=$scratch/venv/bin/python
    export LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  else
    need debian debian-build debian-check
    stage build build_for_gpu
  fi

  "$flashkda" info --json > "$scratch/info.json"
  nvidia-smi --id=0 --query-gpu=name,driver_version --format=csv,noheader |
    awk -F', ' -v date="$(date -u +%F)" '{ printf "{\"device\": \"%s\", \"driver\": \"%s\", \"date\": \"%s\"}\n", $1, $2, date }' \
      > "$scratch/device.json"
  local report
  for report in info.json device.json; do
    [[ ! -e $folder/$report ]] || cmp --quiet "$scratch/$report" "$folder/$report" ||
      fail "gpu: got $folder with reports of another build, machine or day, accepted is a new folder or one of the same"
    cp "$scratch/$report" "$folder"
  done
  local paths=(two_kernel fused)
  if [[ $(nvidia-smi --id=0 --query-gpu=compute_cap --format=csv,noheader) != 9.0 ]]; then
    echo "the fused path is left out: it is for compute capability 9.0"
    paths=(two_kernel) not_here=':Grid/*_fused'
  fi

  local names=() processes=() failed=()
  trap 'jobs -pr | xargs --no-run-if-empty kill' EXIT
  start() {  # NAME COMMAND...
    [[ ! -e $folder/passed/$1 ]] || return 0
    "${@:2}" > "$folder/logs/$1.log" 2>&1 &
    names+=("$1") processes+=($!)
  }
  alone() {  # NAME COMMAND...
    local start=$SECONDS
    [[ ! -e $folder/passed/$1 ]] || return 0
    echo "==== $1"
    if "${@:2}"; then touch "$folder/passed/$1"; else failed+=("$1"); fi
    echo "==== $1: $((SECONDS - start)) s"
  }
  run_tests() {  # NAME PATH FILTER
    "$tests" --cuda-path="$2" --gtest_filter="$3" --gtest_output="xml:$folder/tests/$1_$2.xml"
  }
  sanitize() {  # TOOL LEFT_OUT OPTIONS...
    compute-sanitizer --tool "$1" --log-file "$folder/sanitizer/$1.log" "$tests" --gtest_brief=1 \
      --gtest_filter="*Small*:*Stages*-$2" "${@:3}"
  }
  # Every test that leaves the path open runs on each; the rows of the grids name theirs. One looks at the device's free memory.
  local measures_memory=RunTime.C40_NoAllocation path tool i
  start two_kernel run_tests cuda two_kernel "-$measures_memory$not_here"
  [[ -n $not_here ]] || start fused run_tests cuda fused "-$measures_memory:Grid*"
  for tool in memcheck synccheck initcheck; do start "$tool" sanitize "$tool" "$not_here"; done
  # One arrival a warp is more than racecheck follows: docs/async-proxy.md.
  start racecheck sanitize racecheck 'Grid/*_fused' --cuda-path=two_kernel
  stage install install_for_gpu "$kit" "$scratch" "$python"
  start python env FLASHKDA_CLI="$flashkda" "$python" -m pytest -m gpu tests --junitxml="$folder/tests/python.xml"
  # Into Triton's cache, where the peers' times find them.
  start compile "$python" bench/gpu_record.py --compile
  for i in "${!names[@]}"; do
    if wait "${processes[i]}"; then
      touch "$folder/passed/${names[i]}"
      echo "==== ${names[i]}: passed, after $SECONDS s"
    else
      failed+=("${names[i]}")
      echo "==== ${names[i]}: failed, after $SECONDS s"
      tail -n 50 "$folder/logs/${names[i]}.log"
    fi
  done

  for path in "${paths[@]}"; do alone "memory-$path" run_tests memory "$path" "$measures_memory"; done
  alone host "$host_cost" "$folder/benchmarks/host.json"
  alone host-python "$python" bench/host_cost.py --device cuda --record "$folder/benchmarks/host_python.json"
  alone shapes "$python" bench/gpu_shapes.py "$folder"
  alone peers "$python" bench/gpu_record.py "$folder" --published "$scratch/peer"
  rm -rf "$scratch"
  ((${#failed[@]} == 0)) || fail "failed: ${failed[*]}"
  python3 tools/record.py "$folder"
}
