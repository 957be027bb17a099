"""inspect.signature() of what nanobind binds: made of nanobind's own description when somebody asks."""

from __future__ import annotations

import gc
import inspect
import re
from typing import Any

from . import _core


def _signature_of(function: Any) -> inspect.Signature:
    """Without annotations, which are in the stubs. AttributeError for overloads, which one signature cannot say."""
    if len(function.__nb_signature__) != 1:
        raise AttributeError("__signature__")
    text, _, defaults = function.__nb_signature__[0]
    text = re.sub(r"\\(\d+)", r"_defaults[\1]", text)  # nanobind refers to defaults by number
    scope: dict[str, Any] = {"_defaults": defaults}
    exec("from __future__ import annotations\n" + re.sub(r"^def \w*", "def function", text) + ": ...", scope)
    signature = inspect.signature(scope["function"])
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return inspect.Signature(parameters)


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def add_signatures() -> None:
    """Adds the attribute to the types of functions, methods, bound methods and classes of the module."""
    of_function = property(_signature_of)
    of_bound = property(lambda method: _without_self(_signature_of(method)))
    of_class = property(lambda cls: _without_self(_signature_of(cls.__init__)))
    method = _core.Device.__init__
    for kind, attribute in [(type(_core.tensor), of_function), (type(method), of_function),
                            (type(method.__get__(_core.float32)), of_bound), (type(_core.Device), of_class)]:
        # The types refuse setattr, but their dict takes it. Nobody has looked the name up before, so that no cache knows better.
        gc.get_referents(kind.__dict__)[0]["__signature__"] = attribute
