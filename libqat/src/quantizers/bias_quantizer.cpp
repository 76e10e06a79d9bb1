#include "autograd/affine_operators.h"
#include "quantizers/quantizer_config.h"
#include <qat/graph/layer_scope.h>
#include <qat/quantizers/bias_quantizer.h>

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <ostream>

namespace qat {
namespace {

// The bounds of int32 as float32 and double numbers; 2147483647 is no float32, the one below is 2147483520.
constexpr double kLowest = -2147483648.0;
constexpr double kBeyond = 2147483648.0;
constexpr double kHighestFloat = 2147483520.0;

torch::Tensor raw_codes(const torch::Tensor& bias, const torch::Tensor& scale, Rounding rounding) {
  return detail::affine_raw_code(bias, scale, torch::zeros({}, bias.options()), rounding);
}

/// Looks at the values, which waits for a GPU.
void check_scales(const torch::Tensor& scale) {
  const auto scales = scale.to(torch::kCPU, torch::kDouble).contiguous();
  for (std::int64_t c = 0; c < scales.numel(); ++c) {
    const double s = scales.const_data_ptr<double>()[c];
    TORCH_CHECK_VALUE(s > 0.0 && std::isfinite(s), "qat::BiasQuantizer: scale ", s, " of channel ", c,
                      " is not a positive finite number");
  }
}

/// The same; NaN passes.
void check_codes(const torch::Tensor& bias, const torch::Tensor& scale, const torch::Tensor& codes) {
  check_scales(scale);
  const auto biases = bias.to(torch::kCPU, torch::kDouble).contiguous();
  const auto scales = scale.to(torch::kCPU, torch::kDouble).expand_as(bias).contiguous();
  const auto values = codes.to(torch::kCPU, torch::kDouble).contiguous();
  for (std::int64_t c = 0; c < values.numel(); ++c) {
    const double s = scales.const_data_ptr<double>()[c];
    const double code = values.const_data_ptr<double>()[c];
    const double b = biases.const_data_ptr<double>()[c];
    TORCH_CHECK_VALUE(
        !(code < kLowest || code >= kBeyond), "qat::BiasQuantizer: bias ", b, " of channel ", c,
        " needs code ", code, " at scale ", s,
        " (input scale times weight scale), which int32 cannot hold; the scale must be at least ",
        std::fabs(b) / (kBeyond - 1.0), ": raise the weight scale of this channel by a factor of ",
        std::fabs(code) / (kBeyond - 1.0));
  }
}

struct BiasFunction : torch::autograd::Function<BiasFunction> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& bias,
                               const torch::Tensor& scale, Rounding rounding, bool saturates) {
    const auto type = bias.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto wide = bias.to(type);
    const auto wide_scale = scale.to(type);
    auto codes = raw_codes(wide, wide_scale, rounding);
    if (saturates) {
      if (bias.device().is_cpu()) check_scales(wide_scale);
      codes = codes.clamp(kLowest, type == torch::kDouble ? kBeyond - 1.0 : kHighestFloat);
    } else {
      const at::tracer::impl::NoTracerDispatchMode no_tracer;
      check_codes(wide, wide_scale, codes);
    }
    return detail::affine_real(codes, wide_scale, torch::zeros({}, wide.options())).to(bias.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], {}, {}, {}};
  }
};

torch::Tensor checked_scale(const torch::Tensor& bias, const torch::Tensor& scale) {
  TORCH_CHECK_VALUE(bias.defined() && bias.is_floating_point() && bias.dim() == 1,
                    "qat::BiasQuantizer: expected a real bias of shape [channels], got ",
                    bias.defined() ? bias.toString() : "an undefined tensor");
  TORCH_CHECK_VALUE(scale.defined() && scale.is_floating_point() &&
                        (scale.numel() == 1 || (scale.dim() == 1 && scale.numel() == bias.numel())),
                    "qat::BiasQuantizer: expected one scale or ", bias.numel(), ", got ",
                    scale.defined() ? scale.numel() : 0);
  return (scale.numel() == 1 ? scale.reshape({}) : scale).detach().to(bias.device());
}

}  // namespace

torch::Tensor BiasQuantizer::forward(const torch::Tensor&) {
  TORCH_CHECK(
      false,
      "qat::BiasQuantizer: a bias is quantized at the scale of the accumulator; call forward(bias, scale)");
}

torch::Tensor BiasQuantizer::forward(const torch::Tensor& bias, const torch::Tensor& scale) {
  // A capture, in eval mode too, asks what feeds what, not for results.
  const bool saturates = is_training() || CaptureListener::current() != nullptr;
  return BiasFunction::apply(bias, checked_scale(bias, scale), rounding_, saturates);
}

torch::Tensor BiasQuantizer::codes(const torch::Tensor& bias, const torch::Tensor& scale) {
  const torch::NoGradGuard no_grad;
  const auto at = checked_scale(bias, scale);
  const auto type = bias.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto codes = raw_codes(bias.detach().to(type), at.to(type), rounding_);
  TORCH_CHECK_VALUE(!torch::isnan(codes).any().item<bool>(),
                    "qat::BiasQuantizer: the bias holds a NaN, which has no code");
  check_codes(bias.detach(), at, codes);
  return codes.to(torch::kInt);
}

std::string BiasQuantizer::config() const {
  return nlohmann::ordered_json{{"type", kBiasQuantizerType}, {"rounding", to_string(rounding_)}}.dump();
}

std::shared_ptr<TensorModule> make_bias_quantizer(const nlohmann::json& config) {
  try {
    return std::make_shared<BiasQuantizer>(parse_rounding(config.at("rounding").get<std::string>()));
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "qat::BiasQuantizer: bad configuration ", config.dump(), ": ", error.what());
  }
}

void BiasQuantizer::pretty_print(std::ostream& stream) const {
  stream << "qat::BiasQuantizer(int32)";
}

}  // namespace qat
