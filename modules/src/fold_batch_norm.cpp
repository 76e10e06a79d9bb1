#include <qat/nn/fold_batch_norm.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <vector>

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

}  // namespace qat::nn
