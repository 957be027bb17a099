"""The functions and methods of ops, read from the generated stubs."""

import ast
import pathlib
from dataclasses import dataclass

import shard

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Parameter:
    name: str
    annotation: str
    default: str  # as the stub writes it; "" for an argument that must be passed

    @property
    def is_tensor(self):
        return self.annotation.startswith("Tensor")

    @property
    def is_list_of_tensors(self):
        return self.annotation.startswith("Sequence[Tensor]")


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple

    @property
    def is_method(self):
        return bool(self.parameters) and self.parameters[0].annotation == "Tensor"


def parameters_of(node):
    arguments = node.args.args
    defaults = [None] * (len(arguments) - len(node.args.defaults)) + node.args.defaults
    return tuple(
        Parameter(a.arg, ast.unparse(a.annotation) if a.annotation else "", ast.unparse(d) if d else "")
        for a, d in zip(arguments, defaults)
    )


def read_stubs():
    """The functions, and the methods, by name."""
    folder = pathlib.Path(shard.__file__).parent / "_ops"
    paths = sorted(folder.glob("*.pyi")) or sorted((REPOSITORY / "generated" / "python").glob("*.pyi"))
    functions, methods = {}, {}
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, Function(node.name, parameters_of(node)))  # the first of overloads
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef):
                        methods.setdefault(each.name, Function(each.name, parameters_of(each)))
    return functions, methods


FUNCTIONS, METHODS = read_stubs()

# Ops whose results the generator decides in general; test_ops_random.py has statistical tests of them.
RANDOM = {
    "bernoulli",
    "binomial",
    "dirichlet",
    "dropout",
    "exponential_",
    "fused_dropout_add",
    "gaussian",
    "gaussian_inplace",
    "gaussian_inplace_",
    "multinomial",
    "poisson",
    "randint",
    "randperm",
    "standard_gamma",
    "truncated_gaussian_random",
    "uniform",
    "uniform_inplace",
    "uniform_inplace_",
}
# Ops whose results have no values.
WITHOUT_VALUES = {"empty"}
