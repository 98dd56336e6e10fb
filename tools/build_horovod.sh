#!/usr/bin/env bash
# Build Horovod against the torch of the active environment and install it there.
#
#   tools/build_horovod.sh            (PYTHON=… names another interpreter; JOBS=… compilers at once)
#
# Five to six minutes of one core the first time. The wheel is kept in the cache folder under the versions of
# Horovod, Python and torch, so that a second environment takes seconds; an environment that has it
# already is left alone. Nothing else in the environment is changed: the old setuptools which
# Horovod's build wants is put beside it, for the time of the build.
set -euo pipefail

version=0.28.1
python=${PYTHON:-python}
cache=${THRESHER_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/thresher}

works() { "$python" -c "import horovod.torch as h; assert h.gloo_built()" 2>/dev/null; }

if works; then
    echo "horovod is installed and works"
    exit 0
fi
tag=$("$python" -c 'import platform, sys, torch
print(f"cp{sys.version_info[0]}{sys.version_info[1]}-torch{torch.__version__}-{platform.machine()}")') || {
    echo "build_horovod: $python has no torch; install torch first" >&2
    exit 2
}
wheels=$cache/wheels/horovod-$version-$tag

if ! compgen -G "$wheels/*.whl" >/dev/null; then
    for tool in cmake g++ make; do
        command -v "$tool" >/dev/null || {
            echo "build_horovod: $tool is missing; install cmake, g++ and make" >&2
            exit 2
        }
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Its build wants setuptools before 80; torch's headers want C++17, where Horovod's CMake file
    # says 14. A compiler launcher changes that one word; the source stays as published.
    "$python" -m pip install --quiet --target "$work/tools" "setuptools<80" wheel cffi packaging
    cat >"$work/cxx17" <<'LAUNCHER'
#!/usr/bin/env bash
exec "${@/-std=c++14/-std=c++17}"
LAUNCHER
    chmod +x "$work/cxx17"
    echo "building horovod $version for $tag; this takes five to ten minutes" >&2
    PYTHONPATH="$work/tools${PYTHONPATH:+:$PYTHONPATH}" \
        CMAKE_CXX_COMPILER_LAUNCHER="$work/cxx17" MAKEFLAGS="-j${JOBS:-1}" \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
        nice -n 15 "$python" -m pip wheel --no-build-isolation --no-deps --no-binary horovod \
        --wheel-dir "$work/wheel" "horovod==$version" >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        echo "build_horovod: the build failed; its last lines stand above" >&2
        exit 1
    }
    # Renamed into place as a whole: a build that is killed leaves no half of a wheel behind.
    mkdir -p "$(dirname "$wheels")"
    rm -rf "$wheels"
    mv "$work/wheel" "$wheels"
fi
"$python" -m pip install --quiet cloudpickle psutil pyyaml packaging cffi
"$python" -m pip install --quiet --no-deps "$wheels"/*.whl
works || {
    echo "build_horovod: horovod was built but does not import" >&2
    "$python" -c "import horovod.torch" || true
    exit 1
}
echo "horovod $version is installed"
