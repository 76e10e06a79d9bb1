#include <qat/nn/batch_norm.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/quantizable_layer.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace qat::nn {
namespace {

std::string join(const std::string& path, const char* name) {
  return path.empty() ? name : path + "." + name;
}

// Finds for each BatchNorm of a graph the layer that can absorb it, or the reason why there is none.
class FoldPlanner {
 public:
  FoldPlanner(torch::nn::Module& model, const Graph& graph, FoldOptions options)
      : graph_(graph), options_(options) {
    for (const auto& [path, layer] : quantizable_layers(model))
      layers_.emplace(path, layer);
    note_parameters(model);
    for (const auto& module : model.modules(/*include_self=*/false))
      note_parameters(*module);
  }

  std::vector<FoldReport> plan() const {
    std::vector<FoldReport> reports;
    std::set<std::string> given_bias;
    for (const GraphNode& node : graph_.nodes) {
      auto* bn = find<BatchNormLayer>(node);
      if (!bn || !bn->normalizes() || node.call > 0) continue;
      FoldReport report = planned(node, *bn);
      if (report.into.empty() && options_.into_themselves) plan_itself(report, *bn);
      if (!report.into.empty()) {
        const BatchNormStatistics statistics = bn->statistics();
        if (statistics.gamma.defined()) report.removed_parameters.push_back(join(node.path, "weight"));
        if (statistics.beta.defined()) report.removed_parameters.push_back(join(node.path, "bias"));
        const bool has_bias = layer(report.into).bias_parameter()->defined();
        if (!has_bias && given_bias.insert(report.into).second)
          report.added_parameters.push_back(join(report.into, "bias"));
      }
      reports.push_back(std::move(report));
    }
    return reports;
  }

  QuantizableLayer& layer(const std::string& path) const { return *layers_.at(path); }

 private:
  void note_parameters(const torch::nn::Module& module) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      users_[parameter->unsafeGetTensorImpl()].insert(&module);
    }
  }
  template <class Interface>
  Interface* find(const GraphNode& node) const {
    const auto found = layers_.find(node.path);
    if (node.kind != GraphNode::Kind::kLayer || found == layers_.end()) return nullptr;
    return dynamic_cast<Interface*>(found->second);
  }
  bool is_shared(const torch::Tensor& parameter) const {
    if (!parameter.defined()) return false;
    const auto found = users_.find(parameter.unsafeGetTensorImpl());
    return found != users_.end() && found->second.size() > 1;
  }
  bool is_read_once(const GraphTensor& tensor) const {
    const bool is_output =
        std::find(graph_.outputs.begin(), graph_.outputs.end(), tensor.id) != graph_.outputs.end();
    return tensor.consumers.size() == 1 && !is_output;
  }

  void plan_itself(FoldReport& report, BatchNormLayer& bn) const {
    if (!bn.has_running_statistics()) return;
    const BatchNormStatistics statistics = bn.statistics();
    if (is_shared(statistics.gamma) || is_shared(statistics.beta)) return;
    report.into_itself = true;
    if (!statistics.gamma.defined()) report.added_parameters.push_back(join(report.batch_norm, "weight"));
    if (!statistics.beta.defined()) report.added_parameters.push_back(join(report.batch_norm, "bias"));
  }

  FoldReport planned(const GraphNode& node, BatchNormLayer& bn) const {
    FoldReport report;
    report.batch_norm = node.path;
    if (!options_.into_layers) {
      report.why_not = "folding into layers is off";
      return report;
    }
    report.why_not = reason_against_any(node, bn);
    if (!report.why_not.empty()) return report;
    report.why_not = reason_against_former(node, bn);
    if (report.why_not.empty()) {
      report.into = graph_.nodes[graph_.tensors[node.inputs.at(0)].producer].path;
      return report;
    }
    const std::string against_next = reason_against_next(node, bn);
    if (against_next.empty()) {
      report.why_not.clear();
      report.into = graph_.nodes[graph_.tensors[node.outputs.at(0)].consumers.at(0)].path;
      report.into_next = true;
    } else {
      report.why_not += "; " + against_next;
    }
    return report;
  }

  // "" if some layer could take the BatchNorm.
  std::string reason_against_any(const GraphNode& node, BatchNormLayer& bn) const {
    if (!bn.has_running_statistics()) return "no running statistics (track_running_stats is off)";
    if (graph_.find_layer(node.path, 1)) return "it is called more than once";
    if (!find<QuantizableLayer>(node)->occupied_slots().empty()) return "its slots are occupied";
    return "";
  }

  // "" if folding into the layer that makes the input is exact.
  std::string reason_against_former(const GraphNode& node, BatchNormLayer& bn) const {
    const GraphTensor& between = graph_.tensors[node.inputs.at(0)];
    if (between.producer < 0) return "no layer before it";
    const GraphNode& former = graph_.nodes[between.producer];
    std::string reason = reason_against_layer(former, " before it", between, bn);
    if (reason.empty() && !is_read_once(between))
      reason = "the output of " + former.path + " has other readers";
    return reason;
  }

  // "" if folding into the layer that reads the output is exact.
  std::string reason_against_next(const GraphNode& node, BatchNormLayer& bn) const {
    const GraphTensor& between = graph_.tensors[node.outputs.at(0)];
    if (!is_read_once(between)) return "no layer after it is the only reader of its output";
    const GraphNode& next = graph_.nodes[between.consumers[0]];
    std::string reason = reason_against_layer(next, " after it", between, bn);
    if (!reason.empty()) return reason;
    const auto* into = find<QuantizableLayer>(next);
    if (into->weight_channel_axis() != 0) {
      return next.path +
             " after it is a transposed convolution, in which a shift of the input is not the "
             "same everywhere";
    }
    const bool has_shift = channel_affine(bn.statistics()).shift.ne(0).any().item<bool>();
    if (has_shift && into->pads_with_zeros())
      return next.path + " after it pads with zeros, which the BatchNorm would not have shifted";
    return "";
  }

  // Of the layer at the other end of the tensor `between`; `where`: for messages.
  std::string reason_against_layer(const GraphNode& other, const char* where, const GraphTensor& between,
                                   BatchNormLayer& bn) const {
    auto* into = find<QuantizableLayer>(other);
    if (!into) return other.type + where + " is no qat::nn layer";
    if (!into->weight_parameter() || !into->bias_parameter())
      return other.type + where + " has no weight and bias";
    if (graph_.find_layer(other.path, 1)) return other.path + " is called more than once";
    if (!into->occupied_slots().empty()) return "the slots of " + other.path + " are occupied";
    const torch::Tensor weight = *into->weight_parameter();
    // A convolution has its channels on axis 1 (as BatchNorm has them) of batches; a linear layer of matrices
    // only.
    if (static_cast<std::int64_t>(between.shape.size()) != weight.dim()) {
      return other.path +
             " has its channels on another axis than the BatchNorm, or an input without batch dimension";
    }
    const BatchNormStatistics statistics = bn.statistics();
    for (const torch::Tensor& each : {weight, *into->bias_parameter(), statistics.gamma, statistics.beta}) {
      if (is_shared(each)) return "a parameter is shared with another module";
    }
    return "";
  }

  const Graph& graph_;
  FoldOptions options_;
  std::map<std::string, QuantizableLayer*> layers_;
  std::map<const void*, std::set<const torch::nn::Module*>> users_;  // of each parameter
};

FoldedParameters folded_parameters(QuantizableLayer& layer, const BatchNormStatistics& bn, bool into_next) {
  const torch::Tensor& weight = *layer.weight_parameter();
  const torch::Tensor& bias = *layer.bias_parameter();
  const std::int64_t axis = into_next ? 1 : layer.weight_channel_axis();
  const std::int64_t groups = bn.mean.numel() / weight.size(axis);
  return into_next ? fold_batch_norm_before(weight, bias, bn, groups)
                   : fold_batch_norm(weight, bias, bn, axis, groups);
}

}  // namespace

std::vector<FoldReport> plan_batch_norm_folds(torch::nn::Module& model, const Graph& graph,
                                              FoldOptions options) {
  return FoldPlanner(model, graph, options).plan();
}

std::vector<FoldReport> fold_batch_norms(torch::nn::Module& model, const Graph& graph, FoldOptions options) {
  const torch::NoGradGuard no_grad;
  const FoldPlanner planner(model, graph, options);
  std::vector<FoldReport> reports = planner.plan();
  for (const FoldReport& report : reports) {
    auto& bn = dynamic_cast<BatchNormLayer&>(planner.layer(report.batch_norm));
    if (report.into_itself) bn.become_scale_and_shift();
    if (report.into.empty()) continue;
    QuantizableLayer& layer = planner.layer(report.into);
    torch::Tensor& weight = *layer.weight_parameter();
    const FoldedParameters folded = folded_parameters(layer, bn.statistics(), report.into_next);
    const bool had_bias = layer.bias_parameter()->defined();
    weight.copy_(folded.weight);
    layer.set_bias_parameter(folded.bias);
    if (!had_bias) layer.bias_parameter()->set_requires_grad(weight.requires_grad());
    bn.become_identity();
  }
  return reports;
}

}  // namespace qat::nn
