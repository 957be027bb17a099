#include "shard/call/dry_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "shard/call/plan_cache.h"

namespace shard {
namespace {

/// Escapes a text for use inside a JSON string.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  return out;
}

template <class T, class F>
std::string json_list(const std::vector<T>& items, const F& each) {
  std::string text = "[";
  for (const T& item : items) text += (text.size() == 1 ? "" : ", ") + each(item);
  return text + "]";
}

/// Formats a byte count as "1536 B", "1.5 KiB", ...
std::string bytes_text(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string time_text(double ns) {
  if (ns < 1e6) return fmt::format("{:.1f} us", ns / 1e3);
  return ns < 1e9 ? fmt::format("{:.2f} ms", ns / 1e6) : fmt::format("{:.2f} s", ns / 1e9);
}

/// The cost of collectives along an axis of the mesh. Over the whole mesh it is the cost of the
/// slowest axes.
AxisCost cost_of(const ProcessMesh& mesh, int axis) {
  if (axis >= 0) return mesh.cost(axis);
  AxisCost slowest{0, 0};
  for (const AxisCost& cost : mesh.costs().axes) {
    slowest.alpha_ns = std::max(slowest.alpha_ns, cost.alpha_ns);
    slowest.ns_per_byte = std::max(slowest.ns_per_byte, cost.ns_per_byte);
  }
  return slowest;
}

/// The time that the planner's cost model predicts for collectives that run one after the other.
double predicted_ns(const AxisCost& cost, CommKind kind, const CommCount& count) {
  const double starts =
      static_cast<double>(count.calls) * (kind == CommKind::all_reduce ? 2 : 1);  // a reduce-scatter and an all-gather
  return starts * cost.alpha_ns + static_cast<double>(count.bytes_sent) * cost.ns_per_byte;
}

/// Adds the collectives of one communicator, by kind.
void add_traffic(const ProcessMesh* mesh, int axis, const CommStats& stats, std::vector<DryTraffic>& traffic) {
  for (int k = 0; k < kNumCommKinds; ++k) {
    const auto kind = static_cast<CommKind>(k);
    const CommCount& count = stats[kind];
    if (count.calls == 0) continue;
    traffic.push_back({mesh->describe(), axis < 0 ? "" : mesh->name(axis), to_string(kind), count.calls,
                       count.bytes_sent, predicted_ns(cost_of(*mesh, axis), kind, count)});
  }
}

}  // namespace

DryReport dry_report(Rank& rank) {
  if (!rank.dry)
    fail(ErrorCode::invalid_argument,
         "rank {} belongs to a world with data, but only dry worlds (World::dry) have a report", rank.id());
  DryReport report;
  report.rank = rank.id();
  report.world_size = rank.world().size();
  report.calls = call::PlanCache::of(rank).dry_calls.all();
  for (const auto& [mesh, axis] : rank.groups()) add_traffic(mesh, axis, rank.stats(mesh, axis), report.traffic);
  const auto key = [](const DryTraffic& t) { return std::tie(t.mesh, t.axis, t.kind); };
  std::sort(report.traffic.begin(), report.traffic.end(),
            [&](const DryTraffic& a, const DryTraffic& b) { return key(a) < key(b); });
  for (const DryTraffic& each : report.traffic) {
    report.collectives += each.collectives;
    report.bytes_sent += each.bytes_sent;
    report.predicted_ns += each.predicted_ns;
  }
  report.live_bytes = rank.dry->live;
  report.peak_bytes = rank.dry->peak;
  return report;
}

std::string DryReport::text() const {
  std::string out = fmt::format("rank {} of {}: memory {} live, {} peak; {} collectives, {} sent, {} predicted\n\n",
                                rank, world_size, bytes_text(live_bytes), bytes_text(peak_bytes), collectives,
                                bytes_text(bytes_sent), time_text(predicted_ns));
  out += fmt::format("{:>6}  {:<24} {:>11}  {:>12}  {}\n", "calls", "op", "collectives", "sent",
                     "local shards of outputs");
  for (const DryCall& c : calls)
    out += fmt::format("{:>6}  {:<24} {:>11}  {:>12}  {}\n", c.calls, c.op, c.collectives, bytes_text(c.bytes_sent),
                       c.outputs);
  out += fmt::format("\n{:<10} {:<15} {:>11}  {:>12}  {:>12}  {}\n", "axis", "kind", "collectives", "sent", "predicted",
                     "mesh");
  for (const DryTraffic& t : traffic) {
    out += fmt::format("{:<10} {:<15} {:>11}  {:>12}  {:>12}  {}\n", t.axis.empty() ? "all" : t.axis, t.kind,
                       t.collectives, bytes_text(t.bytes_sent), time_text(t.predicted_ns), t.mesh);
  }
  return out;
}

std::string DryReport::json() const {
  const std::string call_list = json_list(calls, [](const DryCall& c) {
    return fmt::format(R"({{"op": "{}", "outputs": "{}", "calls": {}, "collectives": {}, "bytes_sent": {}}})",
                       escaped(c.op), escaped(c.outputs), c.calls, c.collectives, c.bytes_sent);
  });
  const std::string traffic_list = json_list(traffic, [](const DryTraffic& t) {
    return fmt::format(
        R"({{"mesh": "{}", "axis": "{}", "kind": "{}", "collectives": {}, "bytes_sent": {}, "predicted_ns": {}}})",
        escaped(t.mesh), escaped(t.axis), t.kind, t.collectives, t.bytes_sent, t.predicted_ns);
  });
  return fmt::format(
      R"({{"rank": {}, "world_size": {}, "calls": {}, "traffic": {}, "collectives": {}, "bytes_sent": {}, "predicted_ns": {}, )"
      R"("live_bytes": {}, "peak_bytes": {}}})",
      rank, world_size, call_list, traffic_list, collectives, bytes_sent, predicted_ns, live_bytes, peak_bytes);
}

void call::DryCalls::add(std::string_view op, const std::string& outputs, const CommStats& now,
                         const CommStats& before) {
  const auto [found, added] = by_text_.try_emplace(fmt::format("{}\n{}", op, outputs), calls_.size());
  if (added) calls_.push_back({std::string(op), outputs});
  DryCall& call = calls_[found->second];
  ++call.calls;
  call.collectives += now.collectives - before.collectives;
  call.bytes_sent += now.bytes_sent - before.bytes_sent;
}

}  // namespace shard
