#include "graph/trace.h"

#include <algorithm>
#include <numeric>

namespace qat::detail {
namespace {

/// Sets of values; each starts alone.
class DisjointSets {
 public:
  explicit DisjointSets(std::size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }
  std::int64_t find(std::int64_t value) {
    while (parent_[value] != value)
      value = parent_[value] = parent_[parent_[value]];
    return value;
  }
  void unite(std::int64_t a, std::int64_t b) { parent_[find(a)] = find(b); }

 private:
  std::vector<std::int64_t> parent_;
};

}  // namespace

void refuse_hidden_writes(const Trace& trace, const std::string& who) {
  const auto live = trace.live_nodes();
  const auto end = static_cast<std::int64_t>(trace.nodes.size());
  DisjointSets memory(trace.values.size());  // values that may share memory
  DisjointSets identity(
      trace.values.size());  // one tensor before and after writes: readers see the last value
  std::vector<std::vector<std::int64_t>> readers(trace.values.size());
  bool any_write = false;
  for (std::int64_t i = 0; i < end; ++i) {
    const auto& node = trace.nodes[i];
    for (const auto& [output, input] : node.aliases) {
      memory.unite(output, input);
      const bool written = std::find(node.writes.begin(), node.writes.end(), input) != node.writes.end();
      if (written) identity.unite(output, input);
    }
    any_write = any_write || !node.writes.empty();
    if (!live[i]) continue;
    for (const auto input : node.inputs)
      readers[input].push_back(i);
  }
  if (!any_write) return;
  for (const auto output : trace.outputs)
    readers[output].push_back(end);

  const auto producer = [&](std::int64_t value) { return trace.values[value].node; };
  const auto layer_of = [&](std::int64_t node) {
    return node < 0 || node == end ? -1 : trace.nodes[node].layer;
  };
  for (std::int64_t i = 0; i < end; ++i) {
    const auto& node = trace.nodes[i];
    for (const auto written : node.writes) {
      for (std::int64_t other = 0; other < static_cast<std::int64_t>(trace.values.size()); ++other) {
        if (memory.find(other) != memory.find(written) || identity.find(other) == identity.find(written))
          continue;
        if (producer(other) >= i) continue;  // made after the write: it sees the new value
        if (node.layer >= 0 && layer_of(producer(other)) == node.layer)
          continue;  // a layer's own scratch memory
        for (const auto reader : readers[other]) {
          if (reader <= i || (node.layer >= 0 && layer_of(reader) == node.layer)) continue;
          const auto path = trace.last_layer_path(node);
          TORCH_CHECK(
              false, who, ": ", node.op, node.layer >= 0 ? " in " : " after ",
              path.empty() ? "the model's input" : path, " writes in place into a view, and ",
              reader == end ? "the model's output" : trace.nodes[reader].op,
              " reads memory that it shares later, so the order of the operations can not be followed; "
              "write out of place (x = x + y, torch::cat, torch::where)");
        }
      }
    }
  }
}

}  // namespace qat::detail
