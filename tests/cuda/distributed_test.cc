// Distributed tensors on devices: reshards, reductions, ops and collectives give the bits that they give on the host.
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "cuda_case.h"
#include "reshard/layouts.h"
#include "shard/comm/communicator.h"
#include "shard/kernels/device_work.h"
#include "shard/shard.h"
#include "support/mesh_run.h"
#include "support/temp_folder.h"

namespace distributed_test {

using namespace shard;
using namespace shard::test;

namespace {

std::vector<float> host_values(const Tensor& tensor) { return tensor.to(kCpu).to_vector<float>(); }

/// Reshards between all layouts of a tensor whose shards are on `device_of(rank)`.
template <class F>
void check_all_transitions(const std::vector<int>& mesh_shape, const Dims& dims, F&& device_of) {
  const auto* mesh = ProcessMesh::make(mesh_shape);
  run_ranks(mesh->size(), [&](Rank& rank) {
    const Device device = device_of(rank.id());
    const Tensor value = iota<float>(dims, 1.0f);
    const std::vector<float> expected = value.to_vector<float>();
    const auto layouts = all_layouts(mesh, dims.rank(), {ReduceType::sum, ReduceType::max});
    for (const DistSpec* from : layouts) {
      const Tensor start = distribute(value.to(device), from);
      check(start.device() == device, "distribute keeps the device");
      for (const DistSpec* to : layouts) {
        const Tensor moved = reshard(start, to);
        check(moved.device() == device, "reshard keeps the device");
        check(host_values(full_tensor(moved)) == expected,
              to_string(dims) + " from " + from->text() + " to " + to->text());
      }
    }
  });
}

/// A transport for the host, of one member, that says what buffers it was given.
class HostTransport final : public Communicator {
 public:
  using Communicator::Communicator;
  std::vector<Device> devices;

 protected:
  std::unique_ptr<Operation> do_start(Collective collective) override {
    devices.push_back(collective.device);
    if (collective.receive != collective.send)
      std::memcpy(collective.receive, collective.send, collective.receive_bytes(0));
    return nullptr;
  }
  bool takes(Device) const override { return false; }
};

}  // namespace

TEST_CASE("every transition keeps values on a device", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const auto same = [&](int) { return *device; };
  check_all_transitions({3}, {5, 4}, same);
  check_all_transitions({3}, {2, 4}, same);  // with an empty shard
  check_all_transitions({2, 2}, {3, 5}, same);
}

TEST_CASE("ranks on several devices, and on the host, exchange values") {
  const auto device = cuda_device();
  if (!device) return;
  const int count = backend_of(*device).device_count();
  check_all_transitions({3}, {5, 4}, [&](int rank) {
    return rank == 2 ? kCpu : Device{device->backend, static_cast<uint8_t>(rank % count)};
  });
}

TEST_CASE("every transition keeps values between ranks with a device each", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  constexpr const char* kWhat = "NCCL and copies between devices";
  if (!has_devices(*device, 2, kWhat)) return;
  if (device_work(*device)->make_group == nullptr)
    WARN("skipped: NCCL, which was not found at build time: devices exchange data by copies");
  const auto own = [&](int rank) { return Device{device->backend, static_cast<uint8_t>(rank)}; };
  check_all_transitions({2}, {5, 4}, own);
  if (!has_devices(*device, 3, kWhat)) return;
  check_all_transitions({3}, {2, 4}, own);  // with an empty shard
  if (!has_devices(*device, 4, kWhat)) return;
  check_all_transitions({2, 2}, {3, 5}, own);
}

TEST_CASE("reductions on a device have the bits of those on the host, of every dtype and kind") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  const Dims dims{7, 11};
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int32, DType::int64,
                            DType::uint8, DType::boolean}) {
    for (const ReduceType type : {ReduceType::sum, ReduceType::max, ReduceType::min, ReduceType::prod, ReduceType::avg,
                                  ReduceType::any, ReduceType::all}) {
      Layout layout(mesh, 2);
      layout.partial[0] = type;
      const DistSpec* const from = DistSpec::make(layout);
      const DistSpec* const scattered = DistSpec::parse(mesh, "-, p");
      run_ranks(3, [&](Rank& rank) {
        for (const SumPolicy sums : {SumPolicy::float32, SumPolicy::rounded}) {
          Policies policies = rank.policies;
          policies.sums = sums;
          const PolicyScope scope(rank, policies);
          const DenseTensor shard = random_tensor(dims, dtype, 7u + static_cast<unsigned>(rank.id()));
          const auto reduced = [&](Device at, const DistSpec* to) {
            const Tensor whole = full_tensor(reshard(from_local(Tensor(copy_to(at, shard)), from, dims, dtype), to));
            return copy_to(kCpu, whole.get().value);
          };
          for (const DistSpec* to : {DistSpec::replicated(mesh, 2), scattered}) {
            const DenseTensor actual = reduced(*device, to), expected = reduced(kCpu, to);
            check(std::memcmp(actual.raw(), expected.raw(), expected.meta().bytes()) == 0,
                  std::string(to_string(dtype)) + " " + std::string(to_string(type)));
          }
        }
      });
    }
  }
}

TEST_CASE("distributed ops on devices give what they give on the host") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"dp", "tp"});
  run_ranks(4, [&](Rank&) {
    const auto run = [&](Device at) {
      const auto input = [&](const Dims& dims, unsigned seed, const char* layout) {
        return distribute(Tensor(copy_to(at, random_tensor(dims, DType::float32, seed))),
                          DistSpec::parse(mesh, layout));
      };
      const Tensor x = input({6, 8}, 1, "dp, -"), first = input({8, 12}, 2, "-, tp"),
                   second = input({12, 8}, 3, "tp, -");
      const Tensor hidden = relu(matmul(x, first));
      const Tensor out = add(matmul(hidden, second), x);  // the product is a pending sum over tp
      return full_tensor(sum(out, {1})).get().value;
    };
    require_close(copy_to(kCpu, run(*device)), run(kCpu));
  });
}

TEST_CASE("expand_as moves nothing of the tensor whose shape it takes, which may be uninitialised") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank&) {
    const Tensor row = distribute(iota<float>({1, 4}).to(*device), DistSpec::replicated(mesh, 2));
    const Tensor pending = reshard(row, DistSpec::parse(mesh, "-, - | sum(p)"));
    const Tensor like = empty({3, 4}, DistSpec::replicated(mesh, 2), DType::float32, *device);
    check(host_values(full_tensor(expand_as(pending, like))) == std::vector<float>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
          "the rows are equal");
  });
}

TEST_CASE("several tensors on a device move together, and later") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  run_ranks(3, [&](Rank&) {
    std::vector<Tensor> tensors;
    std::vector<const DistSpec*> specs;
    std::vector<std::vector<float>> expected;
    for (const int64_t rows : {5, 6, 7}) {
      const Tensor value = iota<float>({rows, 4});
      expected.push_back(value.to_vector<float>());
      tensors.push_back(distribute(value.to(*device), DistSpec::parse(mesh, rows == 7 ? "-, - | sum(p)" : "p, -")));
      specs.push_back(DistSpec::parse(mesh, rows == 7 ? "p, -" : "-, p"));
    }
    for (const std::vector<Tensor>& moved : {reshard(tensors, specs), reshard_async(tensors, specs)}) {
      for (size_t i = 0; i < moved.size(); ++i) {
        check(spec_of(moved[i]) == specs[i], "the layout is the one asked for");
        check(host_values(full_tensor(moved[i])) == expected[i], "tensor " + std::to_string(i));
      }
    }
  });
}

TEST_CASE("a transport of the host gets copies of buffers on a device") {
  const auto device = cuda_device();
  if (!device) return;
  TraceRing trace;
  CommQueue queue(trace);
  HostTransport transport({0}, 0, queue);
  const DenseTensor send = copy_to(*device, random_tensor({40}, DType::float32, 1));
  const DenseTensor received = copy_to(*device, random_tensor({40}, DType::float32, 2));
  const std::vector<int64_t> bytes{160}, counts{40};
  const auto check_received = [&](Work work) {
    work.wait();
    require_close(copy_to(kCpu, received), copy_to(kCpu, send));
    copy_into(received, copy_to(*device, random_tensor({40}, DType::float32, 2)));
  };
  check_received(transport.all_gather({}, send.raw(), received.raw(), bytes, *device));
  check_received(transport.all_to_all({}, send.raw(), bytes, received.raw(), bytes, *device));
  check_received(
      transport.reduce_scatter({}, send.raw(), received.raw(), counts, DType::float32, ReduceType::sum, *device));
  transport.all_gather({}, received.raw(), received.raw(), std::vector<int64_t>{160}, *device).wait();  // in place
  const DenseTensor before = copy_to(kCpu, send);
  transport.all_reduce({}, send.raw(), 40, DType::float32, ReduceType::sum, *device).wait();
  transport.broadcast({}, send.raw(), 160, 0, *device).wait();
  require_close(copy_to(kCpu, send), before);
  REQUIRE(transport.devices.size() == 6);
  for (const Device given : transport.devices) CHECK(given == kCpu);
}

TEST_CASE("a checkpoint of tensors on devices is loaded in a later world, on other devices and in other layouts") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2, 2}, {}, {"a", "b"});
  const Device other{device->backend, static_cast<uint8_t>(backend_of(*device).device_count() - 1)};
  const Dims dims{5, 7};
  const TempFolder folder;
  using Tensors = std::map<std::string, Tensor>;
  Tensors wholes;  // on the host
  const std::vector<const char*> layouts = {"a, b", "b+a, -", "-, a | sum(b)", "-, -"};
  run_ranks(4, [&](Rank& rank) {
    Tensors saved;
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::boolean}) {
      for (const char* layout : layouts) {
        if (dtype == DType::boolean && std::string_view(layout).find('|') != std::string_view::npos) continue;
        const std::string name = fmt::format("{} {}", to_string(dtype), layout);
        saved[name] = distribute(Tensor(random_tensor(dims, dtype, 1)).to(*device), DistSpec::parse(mesh, layout));
        const Tensor whole = full_tensor(saved[name]).to(kCpu);
        if (rank.id() == 0) wholes[name] = whole;
      }
    }
    saved["plain"] = iota<int64_t>({3}).to(*device);
    save_checkpoint(folder.path(), saved);
  });
  const auto same = [](const Tensor& a, const Tensor& b) {
    const DenseTensor &x = a.get().value, &y = b.get().value;
    return x.meta() == y.meta() && std::memcmp(x.raw(), y.raw(), x.meta().bytes()) == 0;
  };
  run_ranks(4, [&](Rank&) {
    for (const char* layout : layouts) {
      Tensors loaded;
      for (const auto& [name, whole] : wholes) {
        if (whole.dtype() == DType::boolean && std::string_view(layout).find('|') != std::string_view::npos) continue;
        loaded[name] = distribute(full(dims, 0.0, whole.dtype()).to(other), DistSpec::parse(mesh, layout));
      }
      load_checkpoint(folder.path(), loaded);
      for (const auto& [name, tensor] : loaded) {
        check(tensor.device() == other && spec_of(tensor) == DistSpec::parse(mesh, layout), name);
        check(same(full_tensor(tensor).to(kCpu), wholes.at(name)), name + " in " + layout);
      }
    }
  });
  const Tensor plain = full({3}, 0.0, DType::int64);
  load_checkpoint(folder.path(), {{"plain", plain}});
  CHECK(plain.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("tensors on several devices are not resharded in one call, and nothing is sent") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({2}, {}, {"p"});
  run_ranks(2, [&](Rank& rank) {
    const DistSpec *const rows = DistSpec::parse(mesh, "p, -"), *const whole = DistSpec::parse(mesh, "-, -");
    const Tensor here = distribute(iota<float>({4, 3}), rows),
                 there = distribute(iota<float>({4, 3}).to(*device), rows);
    const auto before = rank.stats().collectives;
    check_refused([&] { reshard({here, there}, {whole, whole}); }, ErrorCode::mixed_device, "on cpu and on cuda:0");
    check(rank.stats().collectives == before, "nothing is sent");
    check(host_values(full_tensor(there)) == full_tensor(here).to_vector<float>(), "both are whole");
  });
}

TEST_CASE("optimisers that need numbers of all shards combine them on devices") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  run_ranks(3, [&](Rank&) {
    const auto placed = [&](Device at, const Tensor& value, const char* layout) {
      return distribute(value.to(at), DistSpec::parse(mesh, layout));
    };
    const auto lamb_step = [&](Device at) {
      const auto input = [&](unsigned seed) {
        return placed(at, Tensor(random_tensor({7, 5}, DType::float32, seed)), "p, -");
      };
      const auto number = [&](float value) { return placed(at, full({1}, value), "-"); };
      Tensor param = input(1), moment1 = input(2), moment2 = abs(input(3)), power1 = number(0.9f),
             power2 = number(0.99f), none;
      lamb_(param, input(4), number(0.5f), moment1, moment2, power1, power2, none, Tensor(), 0.1f, 0.9f, 0.99f);
      return full_tensor(param).get().value;
    };
    require_close(copy_to(kCpu, lamb_step(*device)), lamb_step(kCpu));
    for (const float last : {1.0f, INFINITY}) {
      const Tensor numbers = concat({full({6}, 2.0f), full({1}, last)}, 0);  // the last one is on the last rank
      std::vector<Tensor> gradients{placed(*device, numbers, "p")};
      const auto [scaled, found] = check_finite_and_unscale_(gradients, placed(*device, full({1}, 2.0f), "-"));
      check(full_tensor(found).to(kCpu).to_vector<bool>() == std::vector<bool>{last == INFINITY}, "all ranks know it");
      check(host_values(full_tensor(gradients[0]))[0] == 1, "the gradients are unscaled");
    }
  });
}

TEST_CASE("argmax and argmin of sharded dims, and of whole sharded tensors, are those of the host on devices",
          "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::uint8}) {
    for (const Dims& dims :
         {Dims{7, 5}, Dims{2, 3}, Dims{1000, 4}}) {  // also with shards without elements, and in parts
      run_ranks(3, [&](Rank&) {
        // Few different numbers, of which several are the largest.
        const Tensor x =
            cast(remainder(Tensor(random_tensor(dims, DType::int64, 5)), full({1}, 3, DType::int64)), dtype);
        for (const char* layout : {"p, -", "-, p"}) {
          const auto indices = [&](Device at) {
            const Tensor sharded = distribute(x.to(at), DistSpec::parse(mesh, layout));
            std::vector<std::vector<int64_t>> all;
            for (const int64_t axis : {0, 1}) {
              all.push_back(full_tensor(argmax(sharded, axis)).to(kCpu).to_vector<int64_t>());
              all.push_back(full_tensor(argmin(sharded, axis)).to(kCpu).to_vector<int64_t>());
            }
            all.push_back(full_tensor(argmax(sharded, 0, false, true)).to(kCpu).to_vector<int64_t>());
            return all;
          };
          check(indices(*device) == indices(kCpu), std::string(to_string(dtype)) + to_string(dims) + layout);
        }
      });
    }
  }
}

TEST_CASE("running values of sharded dims are those of the host on devices", "[slow_in_asan]") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  for (const Dims& dims : {Dims{7, 5}, Dims{2, 3}, Dims{3, 20'000}}) {
    run_ranks(3, [&](Rank&) {
      const Tensor x(random_tensor(dims, DType::float32, 6));
      for (const char* layout : {"p, -", "-, p"}) {
        const auto values = [&](Device at) {
          const Tensor sharded = distribute(x.to(at), DistSpec::parse(mesh, layout));
          std::vector<Tensor> all;
          for (const int axis : {0, 1}) {
            const auto [best, indices] = cummax(sharded, axis);
            for (const bool flag : {false, true}) {
              all.push_back(cumsum(sharded, axis, false, flag, !flag));
              all.push_back(logcumsumexp(sharded, axis, false, flag, flag));
            }
            all.insert(all.end(), {cumprod(sharded, axis), best, indices, std::get<0>(cummin(sharded, axis))});
          }
          for (Tensor& each : all) each = full_tensor(each).to(kCpu);
          return all;
        };
        const std::vector<Tensor> actual = values(*device), expected = values(kCpu);
        for (size_t i = 0; i < expected.size(); ++i) {
          const std::string problem = testing::difference(actual[i].get().value, expected[i].get().value);
          check(problem.empty(), std::to_string(i) + to_string(dims) + layout + ": " + problem);
        }
      }
    });
  }
}

TEST_CASE("group_norm of channels and places that ranks share is that of the host on devices") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  struct Case {
    Dims dims;
    std::vector<int> groups;
    std::string format;
  };
  // Groups that begin within a shard, those of one rank, and ranks without channels.
  for (const Case& one : {Case{{2, 12, 5}, {1, 2, 3, 4, 12}, "NCHW"}, Case{{2, 2, 7}, {1, 2}, "NCHW"},
                          Case{{2, 5, 8}, {1, 4, 8}, "NHWC"}, Case{{3, 4, 2}, {1, 2}, "NHWC"}}) {
    for (const int groups : one.groups) {
      for (const char* layout : {"-, p, -", "-, -, p"}) {
        run_ranks(3, [&](Rank&) {
          const bool last = one.format == "NHWC";
          const Dims channels{one.dims[last ? 2 : 1]};
          const auto results = [&](Device at) {
            const auto leaf = [&](const Dims& dims, unsigned seed, const char* of) {
              return distribute(Tensor(random_tensor(dims, DType::float32, seed)).to(at), DistSpec::parse(mesh, of))
                  .set_requires_grad(true);
            };
            const Tensor x = leaf(one.dims, 1, layout), scale = leaf(channels, 2, "-"), bias = leaf(channels, 3, "-");
            const Tensor y = group_norm(x, scale, bias, 1e-3f, groups, one.format);
            sum(y * y * x).backward();
            std::vector<Tensor> all{full_tensor(y), full_tensor(x.grad()), full_tensor(scale.grad()),
                                    full_tensor(bias.grad())};
            for (Tensor& each : all) each = each.to(kCpu);
            return all;
          };
          const std::vector<Tensor> actual = results(*device), expected = results(kCpu);
          for (size_t i = 0; i < expected.size(); ++i) {
            const std::string problem = testing::difference(actual[i].get().value, expected[i].get().value);
            check(problem.empty(), fmt::format("{} of {} in {} groups, {} as {}: {}", i, to_string(one.dims), groups,
                                               one.format, layout, problem));
          }
        });
      }
    }
  }
}

TEST_CASE("margin_cross_entropy of sharded classes is that of the host on devices") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Dims& dims : {Dims{4, 7}, Dims{5, 2}}) {  // also with a rank without classes
      run_ranks(3, [&](Rank&) {
        const Tensor cosines = cast(uniform(IntArray(dims), DType::float32, -1, 1, 7), dtype);
        const Tensor label = randint(0, static_cast<int>(dims[1]), {dims[0], 1}, DType::int64, 7);
        const auto results = [&](Device at) {
          const Tensor logits = distribute(cosines.to(at), DistSpec::parse(mesh, "-, p")).set_requires_grad(true);
          const Tensor of_rows = distribute(label.to(at), DistSpec::replicated(mesh, 2));
          const auto [softmax, loss] = margin_cross_entropy(logits, of_rows, false, 0, 0, 1, 0.9f, 0.3f, 0.1f, 4.0f);
          sum(loss).backward();
          std::vector<Tensor> all{full_tensor(softmax), full_tensor(loss), full_tensor(logits.grad())};
          for (Tensor& each : all) each = each.to(kCpu);
          return all;
        };
        const std::vector<Tensor> actual = results(*device), expected = results(kCpu);
        for (size_t i = 0; i < expected.size(); ++i) {
          const std::string problem = testing::difference(actual[i].get().value, expected[i].get().value);
          check(problem.empty(), std::to_string(i) + to_string(dims) + ": " + problem);
        }
      });
    }
  }
}

TEST_CASE("topk along a sharded dim is that of the host on devices") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::uint8}) {
    for (const Dims& dims : {Dims{7, 5}, Dims{2, 4}, Dims{2000, 2}}) {  // also with shards without elements
      run_ranks(3, [&](Rank&) {
        // Few different numbers, so that places decide.
        const Tensor x =
            cast(remainder(Tensor(random_tensor(dims, DType::int64, 5)), full({1}, 3, DType::int64)), dtype);
        for (const int axis : {0, 1}) {
          for (const bool largest : {false, true}) {
            const int k = static_cast<int>(std::min<int64_t>(dims[axis], 9));
            const auto results = [&](Device at) {
              const Tensor sharded = distribute(x.to(at), DistSpec::parse(mesh, axis == 0 ? "p, -" : "-, p"));
              const auto [out, indices] = topk(sharded, k, axis, largest);
              return std::pair(full_tensor(indices).to(kCpu).to_vector<int64_t>(),
                               host_values(cast(full_tensor(out), DType::float32)));
            };
            check(results(*device) == results(kCpu), std::string(to_string(dtype)) + to_string(dims));
          }
        }
      });
    }
  }
}

TEST_CASE("attention to keys of several ranks is that of the host on devices") {
  const auto device = cuda_device();
  if (!device) return;
  const auto* mesh = ProcessMesh::make({3}, {}, {"p"});
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const int64_t keys : {7, 2}) {  // also a rank without keys
      run_ranks(3, [&](Rank&) {
        const auto drawn = [&](const IntArray& shape, int seed) {
          return cast(uniform(shape, DType::float32, -1, 1, seed), dtype);
        };
        const Tensor q = drawn({2, 5, 4, 8}, 1), k = drawn({2, keys, 2, 8}, 2), v = drawn({2, keys, 2, 8}, 3);
        for (const bool causal : {false, true}) {
          const auto results = [&](Device at) {
            const auto placed = [&](const Tensor& x, const char* layout) {
              return distribute(x.to(at), DistSpec::parse(mesh, layout)).set_requires_grad(true);
            };
            const Tensor on_q = placed(q, "-, -, -, -"), on_k = placed(k, "-, p, -, -"), on_v = placed(v, "-, p, -, -");
            const auto [out, softmax, lse, offset] = flash_attn(on_q, on_k, on_v, {}, {}, 0.0f, causal, true);
            sum(multiply(out, out)).backward();
            std::vector<Tensor> all;
            for (const Tensor& each : {out, softmax, lse, on_q.grad(), on_k.grad(), on_v.grad()})
              all.push_back(cast(full_tensor(each), DType::float32).to(kCpu));
            return all;
          };
          const std::vector<Tensor> actual = results(*device), expected = results(kCpu);
          for (size_t i = 0; i < expected.size(); ++i) {
            const std::vector<float> a = actual[i].to_vector<float>(), e = expected[i].to_vector<float>();
            check(a.size() == e.size(), "sizes");
            for (size_t n = 0; n < e.size(); ++n) {
              const float error = std::abs(a[n] - e[n]), unit = std::max(1.0f, std::abs(e[n]));
              check(a[n] == e[n] || error <= (dtype == DType::float32 ? 1e-5f : 4e-2f) * unit,
                    std::to_string(i) + ": " + std::to_string(a[n]) + " is not " + std::to_string(e[n]));
            }
          }
        }
      });
    }
  }
}

}  // namespace distributed_test
