#include <qat/nn/batch_norm.h>
#include <qat/nn/fold_batch_norm.h>
#include <qat/nn/quantizable_layer.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace qat::nn {
namespace {

// [C] as a tensor that multiplies a weight of `dims` dimensions, cut into groups, along `axis` (counted
// without groups).
torch::Tensor along(const torch::Tensor& channels, std::int64_t groups, std::int64_t axis,
                    std::int64_t dims) {
  std::vector<std::int64_t> shape(dims + 1, 1);
  shape[0] = groups;
  shape[axis + 1] = channels.numel() / groups;
  return channels.reshape(shape);
}

// The first axis cut into (groups, size / groups).
torch::Tensor in_groups(const torch::Tensor& weight, std::int64_t groups) {
  std::vector<std::int64_t> shape = weight.sizes().vec();
  shape[0] /= groups;
  shape.insert(shape.begin(), groups);
  return weight.to(torch::kFloat64).reshape(shape);
}

void check_channels(const char* who, std::int64_t expected, const torch::Tensor& channels) {
  TORCH_CHECK_VALUE(channels.numel() == expected, who, ": the weight has ", expected,
                    " channels, the BatchNorm has ", channels.numel());
}

torch::Tensor bias_or_zero(const torch::Tensor& bias, const torch::Tensor& weight, std::int64_t channels) {
  if (bias.defined()) return bias.to(torch::kFloat64);
  return torch::zeros({channels}, weight.options().dtype(torch::kFloat64).requires_grad(false));
}

std::string join(const std::string& path, const char* name) {
  return path.empty() ? name : path + "." + name;
}

// Finds for each BatchNorm of a graph the layer that can absorb it, or the reason why there is none.
class FoldPlanner {
 public:
  FoldPlanner(torch::nn::Module& model, const Graph& graph) : graph_(graph) {
    for (const auto& [path, layer] : quantizable_layers(model))
      layers_.emplace(path, layer);
    note_parameters(model);
    for (const auto& module : model.modules(/*include_self=*/false))
      note_parameters(*module);
  }

  std::vector<FoldReport> plan() const {
    std::vector<FoldReport> reports;
    for (const GraphNode& node : graph_.nodes) {
      auto* bn = find<BatchNormLayer>(node);
      if (!bn || bn->is_identity() || node.call > 0) continue;
      FoldReport report;
      report.batch_norm = node.path;
      report.why_not = reason_against(node, *bn);
      if (report.why_not.empty()) {
        report.into = producer(node)->path;
        const BatchNormStatistics statistics = bn->statistics();
        if (statistics.gamma.defined()) report.removed_parameters.push_back(join(node.path, "weight"));
        if (statistics.beta.defined()) report.removed_parameters.push_back(join(node.path, "bias"));
        const bool has_bias = find<QuantizableLayer>(*producer(node))->bias_parameter()->defined();
        if (!has_bias) report.added_parameters.push_back(join(report.into, "bias"));
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
  const GraphNode* producer(const GraphNode& node) const {
    const std::int64_t id = graph_.tensors[node.inputs.at(0)].producer;
    return id < 0 ? nullptr : &graph_.nodes[id];
  }
  bool is_shared(const torch::Tensor& parameter) const {
    const auto found = users_.find(parameter.unsafeGetTensorImpl());
    return parameter.defined() && found != users_.end() && found->second.size() > 1;
  }

  // "" if the fold is exact.
  std::string reason_against(const GraphNode& node, BatchNormLayer& bn) const {
    if (!bn.has_running_statistics()) return "no running statistics (track_running_stats is off)";
    if (graph_.find_layer(node.path, 1)) return "it is called more than once";
    if (!find<QuantizableLayer>(node)->occupied_slots().empty()) return "its slots are occupied";
    const GraphTensor& between = graph_.tensors[node.inputs.at(0)];
    const GraphNode* before = producer(node);
    if (!before) return "no layer before it";
    auto* into = find<QuantizableLayer>(*before);
    if (!into) return before->type + " before it is no qat::nn layer";
    if (!into->weight_parameter() || !into->bias_parameter())
      return before->type + " before it has no weight and bias";
    if (graph_.find_layer(before->path, 1)) return before->path + " is called more than once";
    const bool is_output =
        std::find(graph_.outputs.begin(), graph_.outputs.end(), between.id) != graph_.outputs.end();
    if (between.consumers.size() != 1 || is_output)
      return "the output of " + before->path + " has other readers";
    if (!into->occupied_slots().empty()) return "the slots of " + before->path + " are occupied";
    const torch::Tensor weight = *into->weight_parameter();
    const BatchNormStatistics statistics = bn.statistics();
    // A convolution puts its channels on axis 1 (as BatchNorm has them) of batches; a linear layer of
    // matrices only.
    if (static_cast<std::int64_t>(between.shape.size()) != weight.dim()) {
      return before->path +
             " has its channels on another axis than the BatchNorm, or an input without batch dimension";
    }
    for (const torch::Tensor& each : {weight, *into->bias_parameter(), statistics.gamma, statistics.beta}) {
      if (each.defined() && is_shared(each)) return "a parameter is shared with another module";
    }
    return "";
  }

  const Graph& graph_;
  std::map<std::string, QuantizableLayer*> layers_;
  std::map<const void*, std::set<const torch::nn::Module*>> users_;  // of each parameter
};

}  // namespace

ChannelAffine channel_affine(const BatchNormStatistics& bn) {
  TORCH_CHECK_VALUE(bn.mean.defined() && bn.variance.defined(),
                    "channel_affine: the BatchNorm has no running statistics; it cannot be folded");
  const torch::NoGradGuard no_grad;
  torch::Tensor scale = (bn.variance.to(torch::kFloat64) + bn.eps).rsqrt();
  if (bn.gamma.defined()) scale = scale * bn.gamma.to(torch::kFloat64);
  torch::Tensor shift = -bn.mean.to(torch::kFloat64) * scale;
  if (bn.beta.defined()) shift = shift + bn.beta.to(torch::kFloat64);
  return {scale, shift};
}

FoldedParameters fold_batch_norm(const torch::Tensor& weight, const torch::Tensor& bias,
                                 const BatchNormStatistics& bn, std::int64_t channel_axis,
                                 std::int64_t groups) {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(
      weight.dim() >= 2 && (channel_axis == 0 || channel_axis == 1) && groups >= 1 &&
          weight.size(0) % groups == 0,
      "fold_batch_norm: expected a weight of 2 dimensions or more, channel axis 0 or 1 and groups that "
      "divide the first dimension; got shape ",
      weight.sizes(), ", axis ", channel_axis, ", groups ", groups);
  const ChannelAffine affine = channel_affine(bn);
  // Along axis 0 the groups lie one after another: nothing to tell apart.
  if (channel_axis == 0) groups = 1;
  const std::int64_t channels = weight.size(channel_axis) * groups;
  check_channels("fold_batch_norm", channels, affine.scale);
  const torch::Tensor scaled =
      in_groups(weight, groups) * along(affine.scale, groups, channel_axis, weight.dim());
  const torch::Tensor shifted = affine.shift + bias_or_zero(bias, weight, channels) * affine.scale;
  return {scaled.reshape(weight.sizes()).to(weight.scalar_type()), shifted.to(weight.scalar_type())};
}

FoldedParameters fold_batch_norm_before(const torch::Tensor& weight, const torch::Tensor& bias,
                                        const BatchNormStatistics& bn, std::int64_t groups) {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(
      weight.dim() >= 2 && groups >= 1 && weight.size(0) % groups == 0,
      "fold_batch_norm_before: expected a weight of 2 dimensions or more and groups that divide the first "
      "dimension; got shape ",
      weight.sizes(), ", groups ", groups);
  const ChannelAffine affine = channel_affine(bn);
  check_channels("fold_batch_norm_before", weight.size(1) * groups, affine.scale);
  const torch::Tensor grouped = in_groups(weight, groups);
  const torch::Tensor scaled = grouped * along(affine.scale, groups, 1, weight.dim());
  const torch::Tensor constant =
      (grouped * along(affine.shift, groups, 1, weight.dim())).flatten(2).sum(2).reshape({weight.size(0)});
  const torch::Tensor shifted = bias_or_zero(bias, weight, weight.size(0)) + constant;
  return {scaled.reshape(weight.sizes()).to(weight.scalar_type()), shifted.to(weight.scalar_type())};
}

std::vector<FoldReport> plan_batch_norm_folds(torch::nn::Module& model, const Graph& graph) {
  return FoldPlanner(model, graph).plan();
}

std::vector<FoldReport> fold_batch_norms(torch::nn::Module& model, const Graph& graph) {
  const torch::NoGradGuard no_grad;
  const FoldPlanner planner(model, graph);
  std::vector<FoldReport> reports = planner.plan();
  for (const FoldReport& report : reports) {
    if (report.into.empty()) continue;
    QuantizableLayer& layer = planner.layer(report.into);
    auto& bn = dynamic_cast<BatchNormLayer&>(planner.layer(report.batch_norm));
    const BatchNormStatistics statistics = bn.statistics();
    torch::Tensor& weight = *layer.weight_parameter();
    const std::int64_t axis = layer.weight_channel_axis();
    const FoldedParameters folded = fold_batch_norm(weight, *layer.bias_parameter(), statistics, axis,
                                                    statistics.mean.numel() / weight.size(axis));
    const bool had_bias = layer.bias_parameter()->defined();
    weight.copy_(folded.weight);
    layer.set_bias_parameter(folded.bias);
    if (!had_bias) layer.bias_parameter()->set_requires_grad(weight.requires_grad());
    bn.become_identity();
  }
  return reports;
}

}  // namespace qat::nn
