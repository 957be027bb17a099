"""What the package is as a whole: its stubs, its examples, modules of ops of other projects, and the end of the interpreter."""

import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import shard

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "python").glob("*.py"))


def run(*command, timeout=300, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example):
    run(sys.executable, example)


def test_examples_and_stubs_pass_mypy(tmp_path):
    pytest.importorskip("mypy")
    assert EXAMPLES
    folder = pathlib.Path(shard.__file__).parent
    environment = dict(os.environ, MYPYPATH=str(folder.parent)) if "site-packages" not in folder.parts else dict(os.environ)
    run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, *EXAMPLES, env=environment)


def test_mypy_finds_a_wrong_argument(tmp_path):
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import shard\n\nshard.relu('x')\nshard.ones([2]).sum(keepdim=3, axes=1)\n")
    folder = pathlib.Path(shard.__file__).parent
    environment = dict(os.environ, MYPYPATH=str(folder.parent)) if "site-packages" not in folder.parts else dict(os.environ)
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(wrong)], capture_output=True, text=True,
                          env=environment)
    assert done.returncode == 1
    assert 'Argument 1 to "relu" has incompatible type "str"' in done.stdout
    assert 'Unexpected keyword argument "axes"' in done.stdout


def test_every_function_has_a_signature_and_a_doc():
    names = [name for name, value in vars(shard._core).items() if inspect.isbuiltin(value) and not name.startswith("_")]
    assert len(names) > 400
    for name in names:
        function = getattr(shard._core, name)
        inspect.signature(function)
        assert function.__doc__, name


def test_stubs_name_what_the_package_has():
    stubs = pathlib.Path(shard.__file__).parent / "_ops"
    files = sorted(stubs.glob("*.pyi"))
    assert len(files) > 20
    import ast

    for file in files:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                assert callable(getattr(shard, node.name)), node.name
            elif isinstance(node, ast.ClassDef) and file.name != "api.pyi":
                for method in node.body:
                    if isinstance(method, ast.FunctionDef):
                        assert hasattr(shard.Tensor, method.name), method.name


def test_a_project_makes_a_module_of_its_own_ops(tmp_path):
    prefix = os.environ.get("SHARD_PREFIX")
    if not prefix:
        pytest.skip("SHARD_PREFIX names no prefix with an installed shardgen")
    source = ROOT / "examples" / "custom_ops"
    run("cmake", "-S", source, "-B", tmp_path, "-G", "Ninja", "-DCMAKE_PREFIX_PATH=" + prefix, "-DPYTHON=ON", "-DCMAKE_CXX_FLAGS=-O0",
        "-DPython_EXECUTABLE=" + sys.executable)
    run("cmake", "--build", tmp_path, timeout=900)
    output = run(sys.executable, source / "try_my_ops.py", env=dict(os.environ, PYTHONPATH=str(tmp_path)))
    assert "[swish_scale] argument 'x' must be Tensor, not list" in output
    assert "as expected, on plain tensors and on a mesh of 4 ranks" in output


def test_the_interpreter_ends_with_live_tensors_hooks_and_programs():
    script = """
import shard
x = shard.ones([3]).requires_grad_()
x.register_hook(lambda gradient: gradient * 2)
y = (x * x).sum()
y.backward()
step = shard.capture(lambda a: a * x)
step(shard.ones([3]))

def program():
    mesh = shard.ProcessMesh([2], ["x"])
    kept.append(shard.shard_tensor(shard.ones([4]), mesh, [shard.Shard(0)]))
    return kept[-1].full_tensor()

kept = []
kept.append(shard.run(program, nranks=2))
print("end")
"""
    assert run(sys.executable, "-c", script) == "end\n"


def test_the_version_is_that_of_the_distribution():
    metadata = pytest.importorskip("importlib.metadata")
    try:
        version = metadata.version("shard")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    assert shard.__version__ == version


def test_import_needs_neither_numpy_nor_matplotlib():
    script = "import sys, shard; print('numpy' in sys.modules, 'matplotlib' in sys.modules)"
    assert run(sys.executable, "-c", script) == "False False\n"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("order", ["torch, shard", "shard, torch"])
def test_pytorch_and_shard_load_in_one_process(order):
    run(sys.executable, "-c", "import %s; print(shard.ones([2]).sum().item())" % order)
