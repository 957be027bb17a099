// Optimiser steps of lists of parameters beside the steps of each, for tests that they have the same bits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shard/shard.h"

namespace shard::test {

/// What steps of several parameters take. A list of numbers has one tensor for all, or one for each.
struct StepLists {
  std::vector<Tensor> params, grads, first, second, third, rates, numbers, powers1, powers2, pairs, masters;

  bool precise() const { return !masters.empty(); }
  /// Entry i of a list of numbers.
  static const Tensor& number(const std::vector<Tensor>& list, size_t i) { return list[list.size() == 1 ? 0 : i]; }
  Tensor& master(size_t i) {
    static thread_local Tensor none;
    return masters.empty() ? none : masters[i];
  }
  /// All that steps write.
  std::vector<Tensor> written() const {
    std::vector<Tensor> all;
    for (const auto* list : {&params, &first, &second, &third, &powers1, &powers2, &masters})
      all.insert(all.end(), list->begin(), list->end());
    return all;
  }
};

/// An optimiser: the step of all parameters, and that of one.
struct MergedStep {
  std::string name;
  std::function<void(StepLists&)> of_all;
  std::function<void(StepLists&, size_t)> of_one;
};

inline std::vector<MergedStep> merged_steps() {
  using L = StepLists;
  return {
      {"sgd_", [](L& l) { merged_sgd_(l.params, l.rates, l.grads, l.masters, l.precise()); },
       [](L& l, size_t i) { sgd_(l.params[i], L::number(l.rates, i), l.grads[i], l.master(i), l.precise()); }},
      {"rmsprop_",
       [](L& l) {
         std::vector<Tensor> none;
         merged_rmsprop_(l.params, l.first, l.grads, l.second, l.rates, none, l.masters, 1e-3f, 0.75f, 0.5f, false,
                         l.precise());
       },
       [](L& l, size_t i) {
         Tensor none;
         rmsprop_(l.params[i], l.first[i], l.grads[i], l.second[i], L::number(l.rates, i), none, l.master(i), 1e-3f,
                  0.75f, 0.5f, false, l.precise());
       }},
      {"rmsprop_, centered",
       [](L& l) {
         merged_rmsprop_(l.params, l.first, l.grads, l.second, l.rates, l.third, l.masters, 1e3f, 0.75f, 0.5f, true,
                         l.precise());
       },
       [](L& l, size_t i) {
         rmsprop_(l.params[i], l.first[i], l.grads[i], l.second[i], L::number(l.rates, i), l.third[i], l.master(i),
                  1e3f, 0.75f, 0.5f, true, l.precise());
       }},
      {"adagrad_", [](L& l) { merged_adagrad_(l.params, l.grads, l.first, l.rates, l.masters, 1e-3f, l.precise()); },
       [](L& l, size_t i) {
         adagrad_(l.params[i], l.grads[i], l.first[i], L::number(l.rates, i), l.master(i), 1e-3f, l.precise());
       }},
      {"adadelta_",
       [](L& l) {
         merged_adadelta_(l.params, l.grads, l.first, l.second, l.rates, l.masters, 0.75f, 1e-3f, l.precise());
       },
       [](L& l, size_t i) {
         adadelta_(l.params[i], l.grads[i], l.first[i], l.second[i], L::number(l.rates, i), l.master(i), 0.75f, 1e-3f,
                   l.precise());
       }},
      {"adamax_",
       [](L& l) {
         merged_adamax_(l.params, l.grads, l.rates, l.first, l.second, l.numbers, l.masters, 0.75f, 0.875f, 1e-3f,
                        l.precise());
       },
       [](L& l, size_t i) {
         adamax_(l.params[i], l.grads[i], L::number(l.rates, i), l.first[i], l.second[i], L::number(l.numbers, i),
                 l.master(i), 0.75f, 0.875f, 1e-3f, l.precise());
       }},
      {"asgd_",
       [](L& l) { merged_asgd_(l.params, l.grads, l.rates, l.first, l.second, l.numbers, l.masters, l.precise()); },
       [](L& l, size_t i) {
         asgd_(l.params[i], l.grads[i], L::number(l.rates, i), l.first[i], l.second[i], L::number(l.numbers, i),
               l.master(i), l.precise());
       }},
      {"rprop_",
       [](L& l) { merged_rprop_(l.params, l.grads, l.first, l.second, l.masters, l.pairs, l.pairs, l.precise()); },
       [](L& l, size_t i) {
         rprop_(l.params[i], l.grads[i], l.first[i], l.second[i], l.master(i), L::number(l.pairs, i),
                L::number(l.pairs, i), l.precise());
       }},
      {"lamb_",
       [](L& l) {
         merged_lamb_(l.params, l.grads, l.rates, l.first, l.second, l.powers1, l.powers2, l.masters, {}, 0.125f, 0.75f,
                      0.875f, 1e-3f, false, l.precise());
       },
       [](L& l, size_t i) {
         lamb_(l.params[i], l.grads[i], L::number(l.rates, i), l.first[i], l.second[i], l.powers1[i], l.powers2[i],
               l.master(i), {}, 0.125f, 0.75f, 0.875f, 1e-3f, false, l.precise());
       }},
  };
}

}  // namespace shard::test
