# Sourced by scripts that measure beside PyTorch: make_torch BUILD makes a virtual environment with the current PyTorch wheel in a
# build folder and sets `python`; it ends the script, with the reason, where PyTorch cannot be imported.
make_torch() {
  python=$1/torch/bin/python
  if [[ ! -x $python ]]; then
    python3 -m venv "$1/torch"
  fi
  # The CPU part of the wheel needs few of the packages that it names, beside the libraries of the CUDA toolkit.
  if ! "$python" -c 'import torch' 2>/dev/null; then
    "$1/torch/bin/pip" install --quiet --no-deps torch typing_extensions sympy mpmath networkx filelock jinja2 markupsafe fsspec numpy \
      nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13 || true
  fi
  local reason
  if ! reason=$("$python" -c 'import torch' 2>&1); then
    echo "not measured, because PyTorch cannot be imported: ${reason##*$'\n'}"
    exit 0
  fi
}
