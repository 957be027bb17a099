// Cases of the ops of graph.yaml.
#include "shard/ops/graph.h"
#include "shard/ops/math.h"
#include "shard/testing/op_cases.h"

namespace shard::testing {
namespace {

/// At least this many rows, so that an index that is below is always valid.
constexpr int64_t kRows = 3;

void add_send_u_recv(OpCases& cases) {
  const auto add = [&](const std::string& name, const std::string& reduce_op, DType integers, int64_t rows) {
    cases.push_back({"send_u_recv", name, kNumbers, [=](Draw& draw) {
                       const CaseInput index = draw.input({draw.size()}).of(integers);
                       return CaseCall{
                           {draw.input({kRows, draw.size()}), index.between(0, kRows - 1),
                            index.between(0, (rows == 0 ? kRows : rows) - 1)},
                           [=](Tensors& t) { return Tensors{send_u_recv(t[0], t[1], t[2], reduce_op, {rows})}; }};
                     }});
  };
  add("SUM", "SUM", DType::int64, 0);
  add("MEAN, int32, 5 rows", "MEAN", DType::int32, 5);
  add("MIN, 2 rows", "MIN", DType::int64, 2);
  add("MAX, int32", "MAX", DType::int32, 0);
  cases.push_back({"send_u_recv", "SUM of rows of one element", kNumbers, [](Draw& draw) {
                     const CaseInput index = draw.input({draw.size()}).of(DType::int64).between(0, kRows - 1);
                     return CaseCall{{draw.input({kRows}), index, index},
                                     [](Tensors& t) { return Tensors{send_u_recv(t[0], t[1], t[2])}; }};
                   }});
}

void add_send_ue_recv(OpCases& cases) {
  const auto add = [&](const std::string& message_op, const std::string& reduce_op, DType integers, int64_t rows) {
    // The edges have one dim less than the nodes, whose last dim is broadcast.
    cases.push_back({"send_ue_recv", message_op + ", " + reduce_op, kNumbers, [=](Draw& draw) {
                       const CaseInput index = draw.input({draw.size()}).of(integers);
                       const int64_t features = draw.size();
                       return CaseCall{
                           {draw.input({kRows, features, 1}), draw.input({index.dims[0], 2}),
                            index.between(0, kRows - 1), index.between(0, (rows == 0 ? kRows : rows) - 1)},
                           [=](Tensors& t) {
                             return Tensors{send_ue_recv(t[0], t[1], t[2], t[3], message_op, reduce_op, {rows})};
                           }};
                     }});
  };
  add("ADD", "SUM", DType::int64, 0);
  add("ADD", "MEAN", DType::int32, 4);
  add("ADD", "MAX", DType::int64, 0);
  add("MUL", "SUM", DType::int32, 2);
  add("MUL", "MEAN", DType::int64, 0);
  add("MUL", "MIN", DType::int32, 4);
}

void add_send_uv(OpCases& cases) {
  for (const char* const message_op : {"ADD", "MUL"}) {
    cases.push_back({"send_uv", message_op, kNumbers, [=](Draw& draw) {
                       const CaseInput index = draw.input({draw.size()}).of(DType::int64);
                       const int64_t features = draw.size();
                       return CaseCall{
                           {draw.input({kRows, features}), draw.input({2, 2, features}), index.between(0, kRows - 1),
                            index.between(0, 1)},
                           [=](Tensors& t) { return Tensors{send_uv(t[0], t[1], t[2], t[3], message_op)}; }};
                     }});
  }
}

void add_segment_pool(OpCases& cases) {
  for (const char* const pooltype : {"SUM", "MEAN", "MIN", "MAX"}) {
    cases.push_back({"segment_pool", pooltype, kNumbers, [=](Draw& draw) {
                       const int64_t rows = draw.size();
                       return CaseCall{
                           {draw.input({rows, draw.size()}), draw.input({rows}).of(DType::int64).between(0, 2)},
                           [=](Tensors& t) { return Tensors{segment_pool(t[0], cumsum(t[1], 0), pooltype)}; }};
                     }});
  }
}

}  // namespace

void add_graph_cases(OpCases& cases) {
  add_send_u_recv(cases);
  add_send_ue_recv(cases);
  add_send_uv(cases);
  add_segment_pool(cases);
}

}  // namespace shard::testing
