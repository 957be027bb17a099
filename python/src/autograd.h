// What the files for gradients and captured programs share: lists of tensors, and calls of Python functions of tensors.
#pragma once

#include <string>
#include <vector>

#include "services.h"

namespace shard::python {

/// Whether None may stand for an undefined tensor.
enum class Nones : bool { refused, allowed };

/// The tensors of a list or tuple, for argument `argument` of `function`. Throws TypeError for anything else.
std::vector<Tensor> tensors_of(nb::handle sequence, const std::string& function, const char* argument,
                               Nones nones = Nones::refused);
/// The same, where a single tensor stands for a list of one.
std::vector<Tensor> one_or_more(nb::handle object, const std::string& function, const char* argument,
                                Nones nones = Nones::refused);
/// A list of Python objects; None for undefined tensors.
nb::list list_of(std::vector<Tensor> tensors);

/// shard.Function and shard.checkpoint (functions.cc).
void register_functions(nb::module_& module);

}  // namespace shard::python
